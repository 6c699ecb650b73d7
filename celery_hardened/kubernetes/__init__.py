"""Manifests for Kubernetes, with an app's own names, queues and limits. Pure; the command line prints them."""
