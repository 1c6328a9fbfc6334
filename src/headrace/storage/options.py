"""The options of connectors for paths and object stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from headrace.base.options import Options, read_settings
from headrace.storage import base
from headrace.storage.base import Storage
from headrace.storage.open import open_storage
from headrace.storage.urls import is_object_store

HiddenSettings = Annotated[
    dict[str, str],
    BeforeValidator(read_settings),
    PlainSerializer(
        lambda settings: dict.fromkeys(settings, "***"), return_type=dict[str, str], when_used="json"
    ),
]
"""An option that takes settings by name, whose values are never displayed."""


class ObjectStoreOptions(Options):
    """The settings of an object store."""

    storage: HiddenSettings = Field(
        default={},
        repr=False,
        description=(
            "Settings of the object store, as `storage.KEY` = 'value': `storage.aws_endpoint`, "
            "`storage.aws_access_key_id`, `storage.aws_region`, `storage.allow_http`, … Never "
            "displayed; missing settings are taken from the environment."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, values: Any) -> Any:
        return _gather_keys(values, "storage")


def _gather_keys(values: Any, name: str) -> Any:
    """Return the options with all `name.KEY` as one mapping `name`."""
    if not isinstance(values, Mapping):
        return values
    own = {key: str(value) for key, value in values.items() if str(key).startswith(f"{name}.")}
    if not own:
        return values
    rest = {key: value for key, value in values.items() if key not in own}
    settings = read_settings(rest.get(name, {})) or {}
    return {**rest, name: {**settings, **{key.removeprefix(f"{name}."): value for key, value in own.items()}}}


class StorageOptions(ObjectStoreOptions):
    """The path of files, and the settings of an object store."""

    path: str = Field(min_length=1, description="A directory, as a path or a URL.")

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        if self.storage and not is_object_store(self.path):
            name = next(iter(self.storage))
            raise ValueError(f"`storage.{name}` is for object stores, and `{self.path}` is none")
        return self

    def open_storage(self, *, part_size: int | None = None) -> Storage:
        """Open the storage of these options."""
        return open_storage(
            self.path, self.storage, part_size=part_size, retry=base.FILES_RETRY, private=False
        )
