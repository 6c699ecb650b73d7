"""Schemas of the two custom resources in our manifests: the fields that we use, strictly; a field that is not here is
refused.

By hand, from the references of KEDA (ScaledObject specification, Prometheus scaler) and of Prometheus Operator
(PodMonitor): their full definitions are longer than our package.
"""

from __future__ import annotations

from typing import Any


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": sorted(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
_LABELS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}}
_METADATA = _object({"name": _NAME, "namespace": _NAME}, {"labels": _LABELS, "annotations": _LABELS})
_DURATION = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}
#: KEDA reads every value of a trigger's metadata as a string, numbers and booleans too.
_NUMBER = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}
_BOOLEAN = {"enum": ["true", "false"]}


def _int(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


_SCALING = _object(
    {
        "stabilizationWindowSeconds": _int(0, 3600),
        "policies": {
            "type": "array",
            "minItems": 1,
            "items": _object(
                {"type": {"enum": ["Percent", "Pods"]}, "value": _int(1, 10_000), "periodSeconds": _int(1, 1800)}
            ),
        },
    },
    {"selectPolicy": {"enum": ["Max", "Min", "Disabled"]}},
)

_PROMETHEUS_TRIGGER = _object(
    {
        "type": {"const": "prometheus"},
        "metadata": _object(
            {
                "serverAddress": {"type": "string", "pattern": "^https?://"},
                "query": {"type": "string", "minLength": 1},
                "threshold": _NUMBER,
            },
            {"activationThreshold": _NUMBER, "ignoreNullValues": _BOOLEAN},
        ),
    },
    {"name": {"type": "string"}, "metricType": {"enum": ["AverageValue", "Value"]}},
)

SCALED_OBJECT = _object(
    {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "metadata": _METADATA,
        "spec": _object(
            {
                "scaleTargetRef": _object({"name": _NAME}, {"apiVersion": {"type": "string"}, "kind": _NAME}),
                "triggers": {"type": "array", "minItems": 1, "items": _PROMETHEUS_TRIGGER},
            },
            {
                "minReplicaCount": _int(0, 10_000),
                "maxReplicaCount": _int(1, 10_000),
                "pollingInterval": _int(1, 3600),
                "cooldownPeriod": _int(0, 86_400),
                "advanced": _object(
                    {
                        "horizontalPodAutoscalerConfig": _object(
                            {"behavior": _object({}, {"scaleUp": _SCALING, "scaleDown": _SCALING})}
                        )
                    }
                ),
            },
        ),
    }
)

POD_MONITOR = _object(
    {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "PodMonitor"},
        "metadata": _METADATA,
        "spec": _object(
            {
                "selector": _object({"matchLabels": _LABELS}),
                "podMetricsEndpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": _object(
                        {"port": {"type": "string", "maxLength": 15}},
                        {
                            "path": {"type": "string", "pattern": "^/"},
                            "interval": _DURATION,
                            "scrapeTimeout": _DURATION,
                        },
                    ),
                },
            }
        ),
    }
)

SCHEMAS = {"ScaledObject": SCALED_OBJECT, "PodMonitor": POD_MONITOR}
