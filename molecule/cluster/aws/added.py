# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a type of resource is that moto's CloudFormation does not know, and is added to it."""

from __future__ import annotations

from typing import Any

import change_sets


class Added:
    """A resource with attributes. A type with a backend makes and removes its part there.

    It is no CloudFormationModel, because moto takes a model's service from the name of its package.
    """

    kind = ""
    attributes: dict[str, str] = {}  # of which "Ref" is the physical id

    def __init__(self, name: str, properties: dict[str, Any], account: str, region: str) -> None:
        self.name, self.properties, self.account, self.region = name, properties, account, region
        self.type, self.told = self.kind, self.make()

    def make(self) -> dict[str, str]:
        """Make the part, and return its attributes."""
        raise NotImplementedError

    def change(self) -> None:
        """Bring the part to its properties."""

    def delete(self, account_id: str, region_name: str) -> None:
        """Take the part away."""

    def is_created(self) -> bool:
        return True

    @property
    def physical_resource_id(self) -> str:
        return self.told["Ref"]

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @classmethod
    def cloudformation_type(cls) -> str:
        return cls.kind

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return attr in cls.attributes

    def get_cfn_attribute(self, attribute_name: str) -> str:
        return self.told[attribute_name]

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **kwargs: Any
    ) -> Added:
        return cls(resource_name, cloudformation_json["Properties"], account_id, region_name)

    @classmethod
    def update_from_cloudformation_json(
        cls,
        original_resource: Any,
        new_resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
    ) -> Added:
        new = cloudformation_json["Properties"]
        fixed = change_sets.replacing(cls.kind, region_name)["True"]
        if any(original_resource.properties.get(key) != new.get(key) for key in fixed):
            return cls(new_resource_name, new, account_id, region_name)
        original_resource.properties = new
        original_resource.change()
        return original_resource  # type: ignore[no-any-return]

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
    ) -> None:
        raise NotImplementedError  # each has delete()
