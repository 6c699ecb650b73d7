"""How a business key is taken from the arguments of a call. Pure.

A key is the same wherever it is taken: at the publish, in the worker, from a copy of the message, and
however the call was written. It is a digest, so no argument is shown by it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import PurePath
from string import Formatter
from typing import Any, TypeAlias

from celery_hardened.canonical import Otherwise, canonical
from celery_hardened.errors import ConfigurationError, UnusableKeyError

#: A call's arguments by parameter, with defaults filled in.
Bound: TypeAlias = "Mapping[str, object]"

_FORMATTER = Formatter()

_COMPARED = "all arguments are compared (compare_arguments=False: the key's alone), and "


@dataclass(frozen=True, slots=True)
class BusinessKey:
    """Which of a task's arguments say that two calls are the same work."""

    names: tuple[str, ...]
    """Parameters the key is made of, sorted; empty: all of them, unless the two below say otherwise."""

    template: str | None
    """Text with fields, ``invoice:{invoice_id}``; the fields' values are hashed with their types."""

    function: Callable[..., object] | None
    """Called as the task is, returns what the key is made of."""

    version: int
    """Part of the key: another version is another key."""

    parameters: tuple[tuple[str, Any], ...]
    """Name and kind of the task's parameters, as its function has them."""

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *names: str,
        key: str | Callable[..., object] | None = None,
        version: int = 1,
    ) -> BusinessKey:
        """The key of the task *function*. With neither *names* nor *key*, every argument is part of it.

        Raises:
            ConfigurationError: These parameters do not exist, or both ways are given, or the text has no field.
        """
        task = getattr(function, "__qualname__", repr(function))
        if not callable(function):
            raise ConfigurationError(f"{task}: a key is taken from a function's arguments, and this is no function")
        parameters = tuple((name, p.kind) for name, p in inspect.signature(function).parameters.items())
        known = [name for name, _ in parameters]
        if known[:1] == ["self"]:
            del known[0]  # the task itself, under bind=True
        if names and key is not None:
            raise ConfigurationError(f"{task}: name parameters or give key=, not both")
        if type(version) is not int or version < 1:
            raise ConfigurationError(f"{task}: version is a whole number from 1 on, not {version!r}")
        if key is None:
            _check_names(task, names, known)
        elif isinstance(key, str):
            _check_template(task, key, known)
        elif not callable(key):
            raise ConfigurationError(f"{task}: key= is a text with fields or a function, not a {type(key).__name__}")
        return cls(
            names=tuple(sorted(names)),
            template=key if isinstance(key, str) else None,
            function=key if callable(key) else None,
            version=version,
            parameters=parameters,
        )

    def digest(self, task: str, bound: Bound, otherwise: Otherwise | None = None) -> str:
        """The key of one call: ``{task}:{version}:`` and 32 hex digits.

        Args:
            bound: What ``bind`` made of the call.
            otherwise: As for ``canonical``; the same one everywhere, or keys differ.

        Raises:
            UnusableKeyError: A part of the key is missing or has no canonical text.
        """
        if self.template is not None:
            text = self._filled(task, self.template, bound, otherwise)
        elif self.function is not None:
            text = self._called(task, self.function, bound, otherwise)
        else:
            text = _texts(task, bound, self.names or sorted(bound), otherwise)
        return f"{task}:{self.version}:{_hashed(text)}"

    def _filled(self, task: str, template: str, bound: Bound, otherwise: Otherwise | None) -> str:
        texts = [canonical(template)]
        for field in _fields(template):
            problem = ""
            try:
                value, _ = _FORMATTER.get_field(field, (), bound)
            except Exception as error:  # noqa: BLE001 - properties and indices of the caller's objects
                problem = f"{{{field}}} cannot be looked up ({type(error).__name__})"
            else:
                texts.append(_text(task, f"{{{field}}}", value, otherwise))
            if problem:
                raise UnusableKeyError(task, problem)
        return f"[{','.join(texts)}]"

    def _called(self, task: str, function: Callable[..., object], bound: Bound, otherwise: Otherwise | None) -> str:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, kind in self.parameters:
            if name not in bound:
                continue  # self
            value: Any = bound[name]
            if kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        try:
            made, problem = function(*args, **kwargs), ""
        except Exception as error:  # noqa: BLE001 - the text of a user's error may hold arguments
            made, problem = None, f"its key= function raised {_where(error)}"
        if made is None:
            # One key for everything is nearly always a forgotten return, and would drop all work but the first.
            raise UnusableKeyError(task, problem or "its key= function returned None")
        return _text(task, "what its key= function returned", made, otherwise)


def bind(task: str, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, object]:
    """The arguments of a call by parameter, however it was written, with defaults filled in.

    Args:
        run: ``task.run``, whose signature is without ``self``. ``*args`` and ``**kwargs`` are one entry each.

    Raises:
        UnusableKeyError: The task cannot be called like this.
    """
    problem = ""
    try:
        bound = _signature(run).bind(*args, **kwargs)
    except TypeError as error:
        problem = str(error)  # names parameters only
    if problem:
        raise UnusableKeyError(task, problem)
    bound.apply_defaults()
    return dict(bound.arguments)


def fingerprint(task: str, bound: Bound, otherwise: Otherwise | None = None) -> str:
    """32 hex digits that tell calls of one key apart by all their arguments.

    Raises:
        UnusableKeyError: An argument has no canonical text, be it part of the key or not.
    """
    return _hashed(_texts(task, bound, sorted(bound), otherwise, why=_COMPARED))


@lru_cache(maxsize=4096)
def _signature(run: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(run)


def _texts(task: str, bound: Bound, names: Sequence[str], otherwise: Otherwise | None, why: str = "") -> str:
    """The canonical text of the arguments *names*, as that of a dict, with errors that name the argument."""
    texts = []
    for name in names:
        if name not in bound:
            raise UnusableKeyError(task, f"there is no argument {name!r}")
        texts.append(f'"{name}":{_text(task, f"{why}argument {name!r}", bound[name], otherwise)}')
    return f"{{{','.join(texts)}}}"


def _text(task: str, what: str, value: object, otherwise: Otherwise | None) -> str:
    try:
        return canonical(value, otherwise=otherwise, place=what)
    except ValueError as error:
        problem = str(error)
    raise UnusableKeyError(task, problem)


def _hashed(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]


def _where(error: Exception) -> str:
    """Class of *error* and the line it was raised in."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    return f"{type(error).__name__} in {PurePath(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"


@lru_cache(maxsize=4096)
def _fields(template: str) -> tuple[str, ...]:
    return tuple(field for _, field, _, _ in Formatter().parse(template) if field is not None)


def _check_names(task: str, names: tuple[object, ...], known: list[str]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(
                f"{task}: a key is made of names of parameters, and this is a {type(name).__name__}; "
                f"a function goes into key=, and the decorator itself is written with parentheses"
            )
        if name not in known:
            raise ConfigurationError(f"{task} has no parameter {name!r}; it has {', '.join(known) or 'none'}")
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{task}: the same parameter is named twice")


def _check_template(task: str, template: str, known: list[str]) -> None:
    try:
        parts = list(_FORMATTER.parse(template))
    except ValueError as error:
        raise ConfigurationError(f"{task}: key={template!r} cannot be read: {error}") from None
    fields = [part for part in parts if part[1] is not None]
    if not fields:
        raise ConfigurationError(
            f"{task}: key={template!r} has no field, so all calls would be one; write {{name}} for an argument"
        )
    for _, field, form, conversion in fields:
        name = (field or "").replace("[", ".").partition(".")[0]
        if form or conversion:
            raise ConfigurationError(
                f"{task}: key={template!r}: values are taken as they are, so {{{field}}} has no '!' and no ':'"
            )
        if name not in known:
            raise ConfigurationError(
                f"{task} has no parameter {name!r} for key={template!r}; it has {', '.join(known) or 'none'}"
            )
