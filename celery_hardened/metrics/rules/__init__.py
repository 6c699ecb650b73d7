"""The alerts, as code: what they ask, how they are worded, and the file that Prometheus reads."""
