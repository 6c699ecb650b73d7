"""Django's settings and, from ``CELERY_`` on, Celery's."""

from kombu import Queue

import environment

# --- Django --------------------------------------------------------------------------------------

SECRET_KEY = environment.secret_key()
DEBUG = environment.DEBUG
ALLOWED_HOSTS = environment.HOSTS
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
DATABASES = {"default": environment.database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "/static/"
STATIC_ROOT = environment.FOLDER / "static"
LOGIN_URL = "admin:login"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "celery_hardened.contrib.django",
    "shop",
]

MIDDLEWARE = [
    "celery_hardened.contrib.django.middleware.correlation_middleware",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# --- the shop ------------------------------------------------------------------------------------

GATEWAY_URL = environment.GATEWAY
GATEWAY_TIMEOUT = 10.0

# --- Celery --------------------------------------------------------------------------------------

CELERY_BROKER_URL = environment.BROKER
CELERY_RESULT_BACKEND = environment.REDIS
CELERY_TIMEZONE = "UTC"

# Each with a routing key of its own: without one they share the default key (check W019).
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_QUEUES = [Queue(name, routing_key=name) for name in ("default", "payments", "heavy")]

# `celery beat` without -S, and the commands about schedules, know where they are kept.
CELERY_BEAT_SCHEDULER = "hardened-django"

# Dead letters, keys of finished work, schedules' records. By default the broker's Redis; RabbitMQ has none.
CELERY_HARDENED_REDIS_URL = environment.REDIS if environment.BROKER != environment.REDIS else None

# A picture is too large for a message: what is above 128 KiB goes here.
CELERY_HARDENED_PAYLOAD_STORE = f"file://{environment.FOLDER / 'payloads'}"

# A killed worker's tasks start elsewhere after so many seconds. 30 by default, which bears more;
# whoever follows the tour should not have to wait for it.
CELERY_HARDENED_LEASE = 8
