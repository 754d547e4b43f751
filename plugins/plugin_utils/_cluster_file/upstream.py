# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The schema of the ParallelCluster that is installed beside Ansible, value by value; nothing where there is none.

A configuration is not given to the schema as a whole: variables may add what it lacks, and the cluster may be of
another version than the one here. So keys and choices that differ between versions are not judged.
"""

from __future__ import annotations

from typing import Any


def schema() -> Any:
    try:
        from pcluster.schemas.cluster_schema import ClusterSchema

        return ClusterSchema(cluster_name="cluster")
    except Exception:  # An installation that does not work is as good as none: our own rules are in force.
        return None


def field(schema: Any, key: str) -> Any:
    """Return what a schema has for a key; None where it has nothing."""
    return next((each for each in schema.fields.values() if each.data_key == key), None) if schema else None


def inner(field: Any) -> Any:
    """Return the schema of a section, or of each entry of a list of sections."""
    return getattr(field, "schema", None)


def item(field: Any) -> Any:
    """Return what a list has for each of its values."""
    return getattr(field, "inner", None)


def refusal(field: Any, value: Any) -> str:
    """Return why ParallelCluster does not take a value; empty where it does, and where that is not known."""
    if field is None:
        return ""
    from marshmallow import ValidationError, validate

    if any(isinstance(each, validate.OneOf) for each in field.validators):
        return ""
    try:
        field.deserialize(value)
    except ValidationError as error:
        return " ".join(str(each) for each in error.messages)
    return ""
