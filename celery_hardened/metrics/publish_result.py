"""What becomes of a publish: one of these. Pure."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

PublishResult: TypeAlias = Literal["published", "deduplicated", "deferred", "too_large", "refused", "failed", "unsent"]

#: What each means, for the reference page.
PUBLISH_MEANING: Final[dict[PublishResult, str]] = {
    "published": "the broker has the message",
    "deduplicated": "nothing was sent: a task of the same key is on its way",
    "deferred": "it waits for a commit; one that comes counts again, by what becomes of it then",
    "too_large": "nothing was sent: its arguments are above `hardened_payload_max`",
    "refused": "nothing was sent: the call itself is at fault (no usable key, arguments that cannot be serialised, "
    "a configuration that does not go together)",
    "failed": "the broker, or a store that the publish needs, did not take it; the caller got the error",
    "unsent": "the broker did not take it after its commit: it is a dead letter, or a line in the log",
}

#: Those with which a caller's work has not gone out, and somebody should look.
PUBLISH_FAILED: Final[frozenset[PublishResult]] = frozenset({"too_large", "refused", "failed", "unsent"})
