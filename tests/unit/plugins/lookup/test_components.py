# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the lookup `components` reads from roles/*/meta/component.yml, with Ansible's own templating."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleLookupError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import lookup_loader
from ansible.template import Templar, trust_as_template

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components


def look(term: str, **given: Any) -> list[Any]:
    variables = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in given.items()}
    loader = DataLoader()
    templar = Templar(loader=loader, variables=variables)
    return list(
        lookup_loader.get("pcluster.postboot.components", loader=loader, templar=templar).run([term], variables)
    )


def test_names_are_the_rows_of_site(repo: Path) -> None:
    plays = yaml.safe_load((repo / "playbooks/site.yml").read_text())
    (main,) = (task["block"] for task in plays[-1]["tasks"] if "block" in task)
    assert look("names") == [task["vars"]["postboot_component"] for task in main if "vars" in task]
    assert look("names")[0] == "pull"


def test_a_component_is_what_its_role_says(repo: Path) -> None:
    docker, exporter = (components.component(repo / "roles" / name) for name in ("docker", "node_exporter"))
    assert (docker.essential, exporter.essential) == (True, False)
    assert [(unit.name, unit.service, unit.source) for unit in exporter.units] == [
        ("node_exporter", "node_exporter", "node_exporter.service.j2"),
        ("amazon-efa-metrics.timer", "amazon-efa-metrics", "amazon-efa-metrics.service.j2"),
        ("pcluster-aws-events.timer", "pcluster-aws-events", "pcluster-aws-events.service.j2"),
    ]
    assert exporter.port(exporter.units[0]) == 9100
    assert {"docker", "containerd", "amazon-efa-metrics", "nvidia-dcgm-exporter"} <= set(look("services"))


def jobs(**given: Any) -> dict[str, Any]:
    return {job["name"]: job for job in look("scrape_jobs", **given)}


def test_jobs_follow_what_is_set_for_the_exporters() -> None:
    assert list(jobs())[-2:] == ["dcgm", "neuron"]
    assert jobs()["dcgm"] == {"name": "dcgm", "port": 9400, "gpu_only": True}
    assert jobs()["neuron"] == {"name": "neuron", "port": 8000, "neuron_only": True}
    drop, node = {"source_labels": ["__name__"], "action": "drop"}, jobs()["node"]
    assert (node["port"], node.get("gpu_only")) == (9100, None)
    assert drop.items() <= node["metric_relabel_configs"][0].items()
    moved = jobs(node_exporter_listen_address="{{ here }}:9200", here="0.0.0.0", dcgm_exporter_listen_address=":9500")
    assert [moved[name]["port"] for name in ("node", "dcgm")] == [9200, 9500]
    assert {"node", "dcgm"} & set(jobs(dcgm_exporter_enabled="{{ 1 > 2 }}")) == {"node"}
    assert {"node", "dcgm"} & set(jobs(node_exporter_enabled="no")) == {"dcgm"}


def test_the_roles_own_default_is_no_word_of_the_user() -> None:
    """A role that ran on other hosts of the play leaves its defaults to all, by which this node has no exporter."""
    (exporter,) = (each for each in components.read() if each.name == "dcgm_exporter")
    default = exporter.defaults["dcgm_exporter_enabled"]
    assert "node_type" in default
    assert jobs(dcgm_exporter_enabled=default) == jobs()


def test_exporters_are_what_tells_its_address_itself() -> None:
    found = {one["unit"]: (one["component"], one["port"], one["option"], one["where"]) for one in look("exporters")}
    assert found["nvidia-dcgm-exporter"] == ("dcgm_exporter", 9400, "--address", "gpu")
    assert found["node_exporter"] == ("node_exporter", 9100, "--web.listen-address", "all")
    assert found["slurm_exporter"] == ("slurm_exporter", 9341, "--web.listen-address", "head")
    assert "grafana-server" not in found  # its command line does not tell where it listens


def test_another_word_is_an_error() -> None:
    with pytest.raises(AnsibleLookupError, match="found exporter; needed: names, services"):
        look("exporter")
