"""Methods by name, those of the package and of users, and what each is and needs, read from its
declarations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

from nearfar.messages import check_known, parse_args_section, summary_of
from nearfar.methods.method import Method
from nearfar.views import ViewPlan, compose, fit_views

Registered = TypeVar("Registered", bound=Method)

_METHODS: dict[str, type[Method]] = {}


def register_method(name: str) -> Callable[[type[Registered]], type[Registered]]:
    """Return a class decorator that lists a method under a name, for the command line and saved
    settings.

    Defining the same class anew (a notebook's cell run again) replaces it. Raises ValueError for a
    name that another class has or that is not of lower-case letters, digits and dashes, and for
    anything but a complete Method that is a frozen dataclass with a recipe "small".

    >>> from dataclasses import dataclass
    >>> @register_method("mine")
    ... @dataclass(frozen=True, kw_only=True)
    ... class Mine(nearfar.methods.SimCLR):
    ...     temperature: float = 0.1
    >>> nearfar.list_methods()["mine"]["defaults"]["temperature"]
    0.1
    """

    def register(cls: Any) -> Any:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise ValueError(
                f"a method's name has lower-case letters, digits and dashes, got {name!r}"
            )
        if problem := _problem(cls):
            raise ValueError(f"method {name!r} cannot be registered: {problem}")
        other = _METHODS.get(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"there is already a method {name!r}, {other.__module__}.{other.__qualname__}"
            )
        _METHODS[name] = cls
        return cls

    return register


def method_names() -> list[str]:
    """Return the names of all registered methods, in alphabetical order."""
    return sorted(_METHODS)


def method_class(name: str) -> type[Method]:
    """Return the class of a method by name; raises ValueError with the nearest name for an unknown
    one.
    """
    check_known("method", name, method_names(), "`nearfar methods` lists them all")
    return _METHODS[name]


def method_name(method: Method | type[Method]) -> str | None:
    """Return the name that a method, or its class, is registered under; None if it is not."""
    cls = method if isinstance(method, type) else type(method)
    return next((name for name, registered in _METHODS.items() if registered is cls), None)


def _problem(cls: object) -> str | None:
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        return f"{cls!r} is not a subclass of nearfar.methods.Method"
    parameters = vars(cls).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        return (
            f"{cls.__name__} is not a frozen dataclass; decorate it with "
            f"@dataclass(frozen=True, kw_only=True) first"
        )
    if inspect.isabstract(cls):
        return f"{cls.__name__} does not define {' and '.join(sorted(cls.__abstractmethods__))}"
    if hidden := cls.hidden_parts():
        return f"its field {' and '.join(hidden)} has the name of a part of Method: rename it"
    return (
        None
        if "small" in cls.recipes
        else f"{cls.__name__} has no recipe 'small', which is the default"
    )


def computation_of(method: Method, views: ViewPlan | None = None, size: int = 224) -> float:
    """Return what the encoder computes for an image in a training step, in forward passes over a
    view of full size.

    A backward pass counts as two, and a small view by its share of the pixels. Heads and loss are
    not counted. views: of the run, for views of full size of `size` pixels; None: the method's own.

    >>> computation_of(SimCLR())
    6.0
    """
    pairing = method.setup(num_images=2).pairing
    if views is None:
        views = compose(fit_views(method.views, size, channels=3), size, channels=3)
    passes = [(side / size) ** 2 for side, _, _ in views.crops(size)]
    online = sum(passes[view] for view in pairing.online_views)
    return 3 * online + sum(passes[view] for view in pairing.momentum_views)


def describe(method: type[Method]) -> dict[str, Any]:
    """Return a method's paper, summary, needs, views, hyperparameters, recipes and how it differs
    from the paper.

    "needs" lists which of "index", "predictor", "second projector", "momentum encoder" and "queue"
    it has by default;
    "computation" is that of an image in a step, see `computation_of`;
    "defaults" are its hyperparameters with the recipe for small data, "meanings" what they are,
    from the docstrings of its class and of those above; "recipes" holds the settings of each
    recipe; "differs" is a list of sentences.
    """
    docs = inspect.cleandoc(method.__doc__ or "")
    small = method.from_recipe("small")
    setup = small.setup(num_images=2)
    meanings: dict[str, str] = {}
    for cls in reversed(method.__mro__):
        meanings |= parse_args_section(inspect.cleandoc(cls.__doc__ or ""))
    differs = re.search(r"Differs from the paper: (.*?)(?:\n\n|\Z)", docs, re.DOTALL)
    # (1) the first; (2) the second
    points = re.split(r"\(\d+\) ", " ".join(differs[1].split())) if differs else []
    needs = {
        "index": setup.needs_index,
        "predictor": setup.predictor is not None,
        "second projector": setup.second_projector is not None,
        "momentum encoder": setup.momentum is not None,
        "queue": setup.queue_size is not None,
    }
    return {
        "paper": method.paper,
        "summary": summary_of(docs),
        "needs": [name for name, needed in needs.items() if needed],
        "views": small.views,
        "computation": computation_of(small),
        "defaults": {field.name: getattr(small, field.name) for field in fields(method)},
        "meanings": {
            field.name: meanings[field.name] for field in fields(method) if field.name in meanings
        },
        "recipes": {name: asdict(recipe) for name, recipe in method.recipes.items()},
        "differs": [point.strip().rstrip(";.") for point in points if point],
    }
