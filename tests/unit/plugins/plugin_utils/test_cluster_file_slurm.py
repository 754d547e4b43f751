# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Words and times of Slurm in YAML: what a file or a variable has is what slurm.conf gets, or it is refused.

What Slurm takes was tried with the 24.05.8 and 25.11.8 of SchedMD/slurm: PreemptMode=False ends every program with
"Unable to process configuration file", and MaxTime=86400 is 60-00:00:00.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import base as users
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions as actions
from ansible_collections.pcluster.postboot.tests.unit.plugins import cluster_config_sample as sample
from ansible_collections.pcluster.postboot.tests.unit.plugins.cluster_config_sample import config, rendered

RELEASE = actions.Release("s3://my-bucket/postboot", "0.1.0-0123456789ab", "0" * 64)
READERS = {"cluster_config_base": users.read, "publish_config": actions.read, "cluster_config_file": users.former}
FILE = """
Image: {{Os: ubuntu2404}}
HeadNode: {{InstanceType: c5.large, Networking: {{SubnetId: {subnet}}}}}
Scheduling:
  Scheduler: slurm
  SlurmSettings:
    CustomSlurmSettings: [{settings}]
  SlurmQueues:
    - Name: gpu
      Networking: {{SubnetIds: [{subnet}]}}
      CustomSlurmSettings: {{{queue}}}
      ComputeResources: [{{Name: c5, InstanceType: c5.large, CustomSlurmSettings: {{{node}}}}}]
"""
# As somebody writes it, and as slurm.conf has to have it.
CERTAIN = [
    ("PreemptMode: OFF", "OFF"),
    ("preemptmode: off", "OFF"),
    ("PreemptMode: 'off'", "off"),
    ("JobRequeue: NO", "0"),
    ("KillOnBadExit: yes", "1"),
    ("OverSubscribe: NO", "NO"),
    ("OverSubscribe: YES", "YES"),
    ("DisableRootJobs: true", "YES"),
    ("Hidden: No", "NO"),
    ("EnforcePartLimits: NO", "NO"),
    ("MaxArraySize: 5000", "5000"),
    ("Weight: -5", "-5"),
    ("PriorityFavorSmall: on", "YES"),
    ("Licenses: 'a:5'", "a:5"),
]
# Files alone: what Ansible has read of a variable does not tell these from others.
TIMES = [
    ("MaxTime: 24:00:00", "24:00:00"),
    ("MaxTime: 12:30", "12:30"),
    ("DefaultTime: 1:00:00", "1:00:00"),
    ("maxtime: 08:00:00", "08:00:00"),
    ("MaxTime: 1440", "1440"),
    ("MaxTime: 1-00:00:00", "1-00:00:00"),
    ("PriorityDecayHalfLife: 14:0", "14:0"),
    ("PreemptExemptTime: -1", "-1"),
]
WORD = "Slurm's own word in quotes, because YAML reads {} without quotes as {}"
UNCERTAIN = [
    ("PreemptMode: ON", f"PreemptMode is true; needed: {WORD.format('YES and ON', 'true')}"),
    ("State: OFF", f"State is false; needed: {WORD.format('NO and OFF', 'false')}"),
    ("OverTimeLimit: no", f"OverTimeLimit is false; needed: {WORD.format('NO and OFF', 'false')}"),
    ("Feature: on", f"Feature is true; needed: {WORD.format('YES and ON', 'true')}"),
]
NUMBERS = [
    ("HealthCheckInterval: 5:00", "HealthCheckInterval is 5:00; needed: '5:00' in quotes, or 300, which YAML reads"),
    ("Weight: 010", "Weight is 010; needed: '010' in quotes, or 8, which YAML reads"),
    ("Reason: 1:30.5", "Reason is 1:30.5; needed: '1:30.5' in quotes, or 90.5, which YAML reads"),
]
PLACES = {
    "settings": "Scheduling/SlurmSettings/CustomSlurmSettings[0]",
    "queue": "Scheduling/SlurmQueues[gpu]/CustomSlurmSettings",
    "node": "Scheduling/SlurmQueues[gpu]/ComputeResources[c5]/CustomSlurmSettings",
}


def write(folder: Path, text: str) -> str:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return str(path)


def file(folder: Path, **settings: str) -> str:
    first = f"{{{settings['settings']}}}" if "settings" in settings else ""
    given = {"queue": "", "node": "", **settings, "settings": first}
    return write(folder, FILE.format(subnet=sample.HEAD, **given))


def custom(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all settings of a configuration: Slurm's, the queue's and the nodes'."""
    scheduling = found["Scheduling"]
    queue = scheduling["SlurmQueues"][0]
    resource = queue["ComputeResources"][0]
    return [
        *(scheduling["SlurmSettings"].get("CustomSlurmSettings") or []),
        queue.get("CustomSlurmSettings") or {},
        resource.get("CustomSlurmSettings") or {},
    ]


def value(text: str, found: list[dict[str, Any]]) -> list[str]:
    """Return the values of a setting as ParallelCluster's Jinja template writes them."""
    name = text.partition(":")[0]
    return [str(each[name]) for each in found if name in each]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("text", "needed"), [*CERTAIN, *TIMES])
def test_a_file_keeps_what_its_author_means(text: str, needed: str, place: str, tmp_path: Path) -> None:
    path = file(tmp_path, **{place: text})
    for read in READERS.values():
        assert value(text, custom(read(path))) == [needed]
    published = yaml.safe_load(actions.render(RELEASE, actions.Wanted({}, []), actions.read(path)))
    for part in published["Scheduling"].get("SlurmQueues") or []:
        assert value(text, [part.get("CustomSlurmSettings") or {}]) in ([], [needed])


@pytest.mark.parametrize("variable", READERS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("text", "line"), [*UNCERTAIN, *NUMBERS])
def test_a_file_whose_author_may_mean_either_is_refused(
    text: str, line: str, place: str, variable: str, tmp_path: Path
) -> None:
    path = file(tmp_path, **{place: text})
    with pytest.raises(Problem) as error:
        READERS[variable](path)
    (found,) = str(error.value).splitlines()
    assert found.startswith(f"{variable}: {path}: {PLACES[place]}/{line}")


def test_every_mistake_of_a_file_is_a_line(tmp_path: Path) -> None:
    path = file(tmp_path, settings="State: NO, MaxTime: 1:00:00", queue="PreemptMode: ON", node="Weight: 1_000")
    with pytest.raises(Problem) as error:
        users.read(path)
    lines = [line.removeprefix(f"cluster_config_base: {path}: ") for line in str(error.value).splitlines()]
    assert [line.partition(" is ")[0] for line in lines] == [
        "Scheduling/SlurmSettings/CustomSlurmSettings[0]/State",
        "Scheduling/SlurmQueues[gpu]/CustomSlurmSettings/PreemptMode",
        "Scheduling/SlurmQueues[gpu]/ComputeResources[c5]/CustomSlurmSettings/Weight",
    ]


def test_settings_that_queues_share_by_anchors_and_merges_are_read_alike(tmp_path: Path) -> None:
    text = f"""
Image: {{Os: ubuntu2404}}
Extra: &limits {{MaxTime: 24:00:00, PreemptMode: OFF, Enabled: OFF}}
HeadNode: {{InstanceType: c5.large, Networking: {{SubnetId: {sample.HEAD}}}}}
Scheduling:
  Scheduler: slurm
  SlurmQueues:
    - Name: a
      CustomSlurmSettings: &a {{<<: *limits, Enabled: 'x'}}
    - Name: b
      CustomSlurmSettings: *a
"""
    found = actions.read(write(tmp_path, text))
    limits = {"MaxTime": "24:00:00", "PreemptMode": "OFF", "Enabled": "x"}
    assert [queue["CustomSlurmSettings"] for queue in found["Scheduling"]["SlurmQueues"]] == [limits, limits]
    assert found["Extra"] == {"MaxTime": 86400, "PreemptMode": False, "Enabled": False}, "no setting of Slurm"


def test_settings_that_refer_to_themselves_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "Scheduling: {SlurmSettings: {CustomSlurmSettings: &a [*a]}}")
    with pytest.raises(Problem, match="nested too deeply or refers to itself"):
        actions.read(path)


def test_a_base_is_rendered_with_quotes(tmp_path: Path) -> None:
    path = file(tmp_path, settings="PreemptMode: OFF", queue="MaxTime: 24:00:00", node="Weight: 7")
    there = rendered(users.read(path), subnet_head="", queues=[])
    text = actions.dump(there.config)
    assert "- PreemptMode: 'OFF'\n" in text
    assert "MaxTime: '24:00:00'\n" in text
    assert yaml.safe_load(text) == there.config


# --- Variables, which Ansible has read.


def given(text: str) -> Any:
    return yaml.safe_load(text)


def asked(place: str, settings: Any) -> dict[str, Any]:
    if place == "settings":
        return {"slurm_settings": {"custom": [{"MaxJobCount": 5}, settings]}}
    key = {"queue": "slurm_settings", "node": "node_settings"}[place]
    return {"queues": [{"name": "gpu", "instance_type": "c5.large", key: settings}]}


VARIABLES = {
    "settings": "cluster_config_slurm_settings.custom[1]",
    "queue": "cluster_config_queues[gpu].slurm_settings",
    "node": "cluster_config_queues[gpu].node_settings",
}
# Which ParallelCluster refuses anyway there.
DENIED = {"queue": {"OverSubscribe"}, "node": {"Weight"}, "settings": set()}


@pytest.mark.parametrize("place", VARIABLES)
@pytest.mark.parametrize(("text", "needed"), CERTAIN)
def test_a_variable_becomes_slurms_word(text: str, needed: str, place: str) -> None:
    if text.partition(":")[0] in DENIED[place]:
        text = text.replace("OverSubscribe", "Shared").replace("Weight", "Port")
    found = config(components=[], **{"slurm_settings": {}, **asked(place, given(text))})
    found["Scheduling"].setdefault("SlurmSettings", {})
    assert value(text, custom(found)) == [needed]


@pytest.mark.parametrize("place", VARIABLES)
@pytest.mark.parametrize(("text", "line"), UNCERTAIN)
def test_a_variable_that_may_mean_either_is_refused(text: str, line: str, place: str) -> None:
    found = rendered(components=[], **asked(place, given(text.replace("State", "Alternate"))))
    assert found.problems[0] == f"{VARIABLES[place]}.{line.replace('State', 'Alternate')}"


@pytest.mark.parametrize("place", VARIABLES)
@pytest.mark.parametrize("text", ["MaxTime: 24:00:00", "maxtime: 12:30", "DefaultTime: 1440", "PriorityMaxAge: 60"])
def test_a_time_that_yaml_may_have_made_is_refused(text: str, place: str) -> None:
    (name, number), *_none = given(text).items()
    (line,) = rendered(components=[], **asked(place, given(text))).problems
    assert line == (
        f"{VARIABLES[place]}.{name} is {number}; needed: quotes, as '{number}' for minutes or '24:00:00' for hours, "
        "because YAML reads hours without quotes as a number, too"
    )


@pytest.mark.parametrize("text", ["MaxTime: 59", "MaxTime: '1440'", "MaxTime: 08:00:00", "MaxTime: 1-00:00:00"])
def test_a_time_that_yaml_cannot_have_made_is_taken(text: str) -> None:
    found = config(components=[], **asked("queue", given(text)))
    assert found["Scheduling"]["SlurmQueues"][0]["CustomSlurmSettings"] == given(text)


def test_a_base_and_a_variable_that_mean_the_same_do_not_conflict(tmp_path: Path) -> None:
    base = users.read(file(tmp_path, settings="PreemptMode: OFF"))
    slurm_settings = {"custom": [{"PreemptMode": False}]}
    found = config(base, region="us-east-1", subnet_head="", queues=[], components=[], slurm_settings=slurm_settings)
    assert found["Scheduling"]["SlurmSettings"]["CustomSlurmSettings"] == [{"PreemptMode": "OFF"}]


# --- What a setting of the user's takes away, and what is added to it.

PATH = "Scheduling/SlurmSettings/CustomSlurmSettings"
DATABASE = {"uri": "db:3306", "user": "slurm", "password_secret": "arn:aws:secretsmanager:us-east-1:1:secret:x"}
EXTERNAL = {"AccountingStorageType": "accounting_storage/slurmdbd"}
GPUS = {"AccountingStorageTRES": "gres/gpu"}


def notes(name: str, **more: Any) -> list[str]:
    return [note for note in rendered(components=[], **more).notes if name.lower() in note.lower()]


def test_words_of_parallelclusters_own_that_are_lost_are_named() -> None:
    lost = {"slurm_settings": {"custom": [{"schedulerparameters": "bf_continue,defer"}, {"AuthInfo": "ttl=300"}]}}
    assert notes("SchedulerParameters", **lost) == [
        f"{PATH}: schedulerparameters replaces ParallelCluster's own, and nohold_on_prolog_fail is lost: a job whose "
        "prolog fails is held, and not requeued. Add nohold_on_prolog_fail to keep it"
    ]
    assert "and cred_expire=70 is lost" in notes("AuthInfo", **lost)[0]


@pytest.mark.parametrize(
    "settings",
    [
        [{"SchedulerParameters": "bf_continue, NoHold_on_prolog_fail"}],
        [{"SchedulerParameters": "defer"}, {"SchedulerParameters": "defer,nohold_on_prolog_fail"}],
        [{"AuthInfo": "cred_expire=300,ttl=300"}, {"PrivateData": "jobs"}],
        [{"PartitionName": "all", "Nodes": "ALL", "SchedulerParameters": "x"}],
    ],
)
def test_words_that_are_kept_need_no_note(settings: list[dict[str, str]], tmp_path: Path) -> None:
    base = {"Scheduling": {"SlurmSettings": {"CustomSlurmSettings": settings}}}
    found = rendered(base, components=[])
    assert [note for note in found.notes if "is lost" in note] == []


def test_a_base_that_loses_words_says_so() -> None:
    base = {"Scheduling": {"SlurmSettings": {"CustomSlurmSettings": [{"SchedulerParameters": "defer"}]}}}
    assert [note for note in rendered(base, components=[]).notes if "nohold_on_prolog_fail is lost" in note]


@pytest.mark.parametrize(
    ("more", "added"),
    [
        ({"components": []}, []),
        ({"components": [], "database": DATABASE}, [GPUS]),
        ({}, [{"MetricsType": "metrics/openmetrics"}]),  # slurmctld would not start
        ({"version": "3.13.0", "database": DATABASE}, [GPUS]),
        (
            {"components": [], "slurm_settings": {"custom": [EXTERNAL]}},
            [EXTERNAL, GPUS],
        ),
    ],
)
def test_slurm_counts_gpus_where_it_counts_at_all(more: dict[str, Any], added: list[dict[str, str]]) -> None:
    found = config(**more)["Scheduling"].get("SlurmSettings", {})
    assert found.get("CustomSlurmSettings", []) == added


@pytest.mark.parametrize(
    ("there", "then"),
    [
        ("gres/gpu", "gres/gpu"),
        ("license/iop1, GRES/GPU,gres/gpu:h100", "license/iop1, GRES/GPU,gres/gpu:h100"),
        ("gres/gpu:h100", "gres/gpu:h100,gres/gpu"),
        ("license/iop1", "license/iop1,gres/gpu"),
    ],
)
def test_gpus_are_added_to_what_the_user_counts(there: str, then: str) -> None:
    settings = [{"accountingstoragetres": there}]
    base = {"Scheduling": {"SlurmSettings": {"CustomSlurmSettings": settings}}}
    for users_file, variables in ((None, {"slurm_settings": {"custom": settings}}), (base, {})):
        outcome = rendered(users_file, components=[], database=DATABASE, **variables)
        assert list(outcome.problems) == []
        found = outcome.config["Scheduling"]["SlurmSettings"]["CustomSlurmSettings"]
        assert found == [{"accountingstoragetres": then}]
        said = f"{PATH}: accountingstoragetres has gres/gpu as well, without which Slurm counts no GPUs"
        assert (said in outcome.notes) == (there != then)
