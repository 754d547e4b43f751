# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/trainium.md: its table of instance types is that of the collection, and EC2's as moto keeps it."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from ansible_collections.pcluster.postboot.plugins.module_utils._efa.devices import DEVICES
from ansible_collections.pcluster.postboot.plugins.module_utils._node.neuron import TYPES
from ansible_collections.pcluster.postboot.tests import installed

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/trainium.md").read_text()
EC2 = json.loads(gzip.decompress((installed.package("moto") / "ec2/resources/instance_types.json.gz").read_bytes()))


def rows() -> dict[str, list[str]]:
    """The cells after the type, of each type that the table names."""
    found = {}
    for types, *cells in re.findall(r"^\| ([a-z0-9., ]+xlarge) \| (\d+) \| (\d+) \| (\d*) ?\|$", PAGE, re.MULTILINE):
        found.update(dict.fromkeys(types.split(", "), cells))
    return found


def test_the_table_has_what_the_collection_knows() -> None:
    known = {
        name: [str(kind.devices), str(kind.cores), str(DEVICES.get(name, ""))]
        for name, kind in TYPES.items()
        if not name.startswith("inf1.")
    }
    assert rows() == known


def test_ec2_says_the_same() -> None:
    for name, (devices, cores, efa) in rows().items():
        answer = EC2[name]
        assert (answer["NetworkInfo"].get("EfaInfo") or {}).get("MaximumEfaInterfaces", "") == (efa and int(efa)), name
        if name != "trn2u.48xlarge":  # of which moto does not know the devices
            (kind,) = answer["NeuronInfo"]["NeuronDevices"]
            assert (kind["Count"], kind["Count"] * kind["CoreInfo"]["Count"]) == (int(devices), int(cores)), name
