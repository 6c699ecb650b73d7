"""What people ask of the section of dead letters: which letters, and what is to become of them."""

from __future__ import annotations

import time
from typing import Any, get_args
from urllib.parse import urlencode

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget

from celery_hardened.cli.selection import parse_moment
from celery_hardened.dead_letter.contract import Query, State
from celery_hardened.dead_letter.letter import REASONS, letter_id

#: Fields by which letters are grouped and chosen; each is a parameter of the list's address.
GROUPED = ("task", "queue", "reason", "error_type", "fingerprint")

#: Redrives and retries of a task up to which its letters are looked for by its id.
_REDRIVES_SOUGHT = 8
_RETRIES_SOUGHT = 25

_ANY = [("", "any")]


class FilterForm(forms.Form):  # type: ignore[misc]
    """Which letters the list shows. Everything is optional, and every given field must match."""

    q = forms.CharField(label="Letter or task id", required=False, max_length=400, strip=True)
    task = forms.CharField(required=False, max_length=400)
    queue = forms.CharField(required=False, max_length=400)
    reason = forms.ChoiceField(label="Died of", required=False, choices=[*_ANY, *((name, name) for name in REASONS)])
    error_type = forms.CharField(label="Error", required=False, max_length=400)
    fingerprint = forms.CharField(required=False, max_length=400)
    state = forms.ChoiceField(
        required=False, choices=[("", "open"), *((name, name) for name in get_args(State))]
    )  # fmt: skip
    since = forms.CharField(required=False, max_length=40, help_text="UTC date, or an age like 2h or 3d")
    until = forms.CharField(required=False, max_length=40, help_text="UTC date, or an age like 2h or 3d")
    none = forms.MultipleChoiceField(
        label="Has none", required=False, choices=[(name, name) for name in GROUPED], widget=forms.MultipleHiddenInput
    )

    def clean_since(self) -> float | None:
        return self._moment("since")

    def clean_until(self) -> float | None:
        return self._moment("until")

    def _moment(self, name: str) -> float | None:
        text = self.cleaned_data[name]
        if not text:
            return None
        try:
            return parse_moment(text, now=time.time())
        except (ValueError, OverflowError):
            raise forms.ValidationError("This is neither a date (2026-01-31, 2026-01-31T12:00) nor an age.") from None

    def query(self) -> Query:
        """What a valid form asks of the store."""
        said = self.cleaned_data
        fields: dict[str, Any] = {name: said[name] or None for name in (*GROUPED, "state")}
        fields.update(dict.fromkeys(said["none"], ""))
        ids = ids_sought(said["q"]) if said["q"] else ()
        return Query(ids=ids, since=said["since"], until=said["until"], **fields)

    def address(self) -> str:
        """The given fields as the query string of an address, as they were typed."""
        given = [(name, value) for name in self.fields for value in self.data.getlist(name) if value]
        return urlencode(given)

    def given(self) -> list[tuple[str, str]]:
        """The same, for hidden fields of another form."""
        return [(name, value) for name in self.fields for value in self.data.getlist(name) if value]


def ids_sought(text: str) -> tuple[str, ...]:
    """The letter *text* if it is a letter's id, and those of the task if it is a task's.

    A letter's id is made of its task's id, the redrive and the retry, so those of a task are asked for by name. No
    store has to be searched for them.
    """
    of_task = (
        letter_id(text, redrives, retries, "")
        for redrives in range(_REDRIVES_SOUGHT + 1)
        for retries in range(_RETRIES_SOUGHT + 1)
    )
    return (text, *of_task)


class DiscardForm(forms.Form):  # type: ignore[misc]
    """Why letters are closed for good."""

    why = forms.CharField(
        label="Reason", max_length=400, help_text="Kept in the audit of each letter.", widget=AdminTextInputWidget
    )

    def in_background(self) -> bool:
        """Was anything asked that takes longer than a page may?"""
        return False


class RedriveForm(DiscardForm):
    """Why letters are sent again, how fast, and how carefully. With any of these it is done by a worker."""

    rate = forms.FloatField(
        label="Messages a second",
        required=False,
        min_value=0.001,
        max_value=100_000,
        help_text="At most; empty for as fast as it goes.",
    )
    canary = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=10_000,
        help_text="So many are sent first, and the others only if these succeed.",
    )
    canary_wait = forms.FloatField(
        label="Seconds to wait for the canary",
        required=False,
        min_value=1,
        max_value=86_400,
        help_text="What has not finished by then has failed. Empty: 60.",
    )
    canary_max_failed = forms.FloatField(
        label="Percent of the canary that may fail", required=False, min_value=0, max_value=100, help_text="Empty: 0."
    )
    dry_run = forms.BooleanField(
        label="Dry run only", required=False, help_text="Write down what would be sent and what not, and send nothing."
    )

    def in_background(self) -> bool:
        return any(self.cleaned_data.get(name) for name in ("rate", "canary", "dry_run"))
