"""A letter's arguments are changed and it is sent again. The letter keeps the message as it was."""

from __future__ import annotations

import inspect
import json
from typing import Any, NoReturn

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from celery_hardened.cli import record
from celery_hardened.contrib.django.dead_letters.act import ActPages
from celery_hardened.contrib.django.dead_letters.forms import DiscardForm
from celery_hardened.dead_letter.contract import OPEN, Query, StoredLetter
from celery_hardened.errors import DeadLetterNotFoundError
from celery_hardened.marks import REFERENCE

#: All of them: who edits sees the arguments, and sends the letter.
NEEDED = ("redrive", "see_arguments", "edit_arguments")

#: Characters of arguments that a form holds.
_MOST = 100_000

_AREA = forms.Textarea(attrs={"rows": 8, "cols": 80, "class": "vLargeTextField", "spellcheck": "false"})


class EditForm(DiscardForm):
    """New arguments, as JSON, and why."""

    args = forms.CharField(label="Positional arguments", max_length=_MOST, widget=_AREA, help_text="A list, as JSON.")
    kwargs = forms.CharField(label="Keyword arguments", max_length=_MOST, widget=_AREA, help_text="An object, as JSON.")

    field_order = ("args", "kwargs", "why")

    def __init__(self, *args: Any, task: Any = None, **kwargs: Any) -> None:
        """*task*: whose arguments they are; ``None`` if it is not known here."""
        super().__init__(*args, **kwargs)
        self.task = task

    def clean_args(self) -> list[Any]:
        return list(self._json("args", list, 'a list, like [1, "two"]'))

    def clean_kwargs(self) -> dict[str, Any]:
        return dict(self._json("kwargs", dict, 'an object, like {"cents": 500}'))

    def _json(self, name: str, kind: type, wanted: str) -> Any:
        try:
            found = json.loads(self.cleaned_data[name], parse_constant=_refuse)
            json.dumps(found, allow_nan=False)  # 1e999 is read as infinite
        except (ValueError, RecursionError) as problem:
            raise forms.ValidationError(f"This is no JSON: {problem}.") from None
        if not isinstance(found, kind):
            raise forms.ValidationError(f"It must be {wanted}.")
        return found

    def clean(self) -> dict[str, Any]:
        said: dict[str, Any] = super().clean() or self.cleaned_data
        if self.task is not None and "args" in said and "kwargs" in said:
            try:
                inspect.signature(self.task.run).bind(*said["args"], **said["kwargs"])
            except TypeError as problem:
                raise forms.ValidationError(f"The task does not take these arguments: {problem}.") from None
            except ValueError:  # a body that does not tell what it takes
                return said
        return said


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


class EditPages(ActPages):
    """A part of ``DeadLetterAdmin``."""

    # If it fails, Django may mail what was posted.
    @method_decorator(sensitive_post_parameters("args", "kwargs"))  # type: ignore[untyped-decorator]
    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        if not all(self.may(request, one) for one in NEEDED):
            raise PermissionDenied
        try:
            stored = self.store.get(unquote(object_id))
        except DeadLetterNotFoundError:
            messages.warning(request, "There is no such letter. Retention may have dropped it.")
            return HttpResponseRedirect(self.address("changelist"))
        task = self.celery_app.tasks.get(stored.letter.task) if stored.letter.task else None
        before, obstacle = _arguments(stored)
        form = EditForm(request.POST if request.method == "POST" else None, initial=before, task=task)
        if request.method == "POST" and not obstacle and form.is_valid():
            self._redrive_edited(request, stored, form)
            return HttpResponseRedirect(self.address("change", object_id))
        context = {"title": "Edit arguments and redrive", "form": form, "obstacle": obstacle, "id": stored.letter.id}
        return self.answer(request, "edit", {**context, "task": stored.letter.task, "known": task is not None})

    def _redrive_edited(self, request: HttpRequest, stored: StoredLetter, form: EditForm) -> None:
        said, letter_id = form.cleaned_data, stored.letter.id

        def do() -> str:
            report = self.hardening.redrive(
                Query(ids=(letter_id,)),
                by=request.user.get_username(),
                why=f"{said['why']} (arguments edited)",
                edit=lambda _args, _kwargs: (said["args"], said["kwargs"]),
            )
            if report.sent:
                return "It was sent with the new arguments. The letter keeps those it came with."
            problems = [*report.refused.values(), *report.failed.values(), report.stopped or ""]
            return f"Nothing was sent: {' '.join(filter(None, problems)) or 'somebody else closed or redrives it.'}"

        self._done(request, "Edit and redrive", [letter_id], said["why"], do)


def _arguments(stored: StoredLetter) -> tuple[dict[str, str], str]:
    """What the form begins with, and why there can be none, as a sentence."""
    letter = stored.letter
    if stored.state not in OPEN:
        return {}, f"This letter is {stored.state} already."
    if stored.leased:
        return {}, "Another redrive holds this letter right now."
    if REFERENCE.encode() in letter.body:
        return {}, (
            "The arguments of this letter lie in the payload store (claim check), and the message has a reference to "
            "them only. They cannot be edited here; publish the task anew, and discard the letter."
        )
    found = record.arguments(letter)
    if "undecoded" in found:
        return {}, f"The arguments of this letter cannot be edited: {found['undecoded']}."
    shown = {name: json.dumps(value, ensure_ascii=False, indent=2) for name, value in found.items()}
    if any(len(value) > _MOST for value in shown.values()):
        return {}, "The arguments of this letter are too long for a page. Use --edit-args and --edit-kwargs of the CLI."
    return shown, ""
