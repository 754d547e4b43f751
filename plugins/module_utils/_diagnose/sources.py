# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is gathered on a node: files, and what programs print. What comes first survives where a limit is reached.

Paths of ParallelCluster are those that its CloudWatch agent ships: aws-parallelcluster-cookbook (052d34f),
cookbooks/aws-parallelcluster-environment/files/cloudwatch/cloudwatch_agent_config.json.
"""

from __future__ import annotations

from typing import Any, NamedTuple

HEAD, COMPUTE = ("head",), ("compute",)
# Left out on purpose, for the page.
NEVER = (
    "user data of instances (/var/lib/cloud/instance)",
    "munge.key, keys and certificates",
    "home directories, and what jobs wrote",
    "environments and arguments of processes",
)


class Files(NamedTuple):
    """Files of a node by patterns. In the archive they have the node's paths."""

    patterns: tuple[str, ...]
    nodes: tuple[str, ...] = ()  # on which types of nodes; all
    joined: str = ""  # the one file of the archive that many small ones become


class Output(NamedTuple):
    """What a program prints. A program that is not there is left out."""

    name: str  # in the folder commands
    argv: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    seconds: float = 20.0
    text: str = ""  # what it is given to read
    shared: bool = False  # whether it needs Slurm's directory


_SLURM = "/opt/slurm/bin/"
_DAEMONS = ("UNIT=slurmctld.service", "UNIT=slurmd.service")
_PCLUSTER = "/etc/parallelcluster/"
# The columns of the reasons for which nodes are down, in this order.
REASONS = "%500E|%u|%H|%T|%N"

FILES = (
    Files(
        (
            "/var/log/pcluster-postboot/*.log",
            "/var/lib/pcluster-postboot/*.json",
            "/var/lib/pcluster-postboot/receipts/*",
            "/run/pcluster-postboot/lock",
            "/run/pcluster-postboot/progress.json",
            "/opt/pcluster-postboot/mode",
            "/opt/pcluster-postboot/current/bundle.json",
            "/opt/pcluster-postboot/current/inventory/group_vars/*",
            "/var/log/pcluster-postboot/*.log.1",
        ),
    ),
    Files(
        (
            "/var/log/parallelcluster/bootstrap_error_msg",
            "/var/log/parallelcluster/clustermgtd",
            "/var/log/cloud-init-output.log",
            "/var/log/cfn-init.log",
            "/var/log/chef-client.log",
            "/var/log/parallelcluster/*",
            "/var/log/cfn-init-cmd.log",
            "/var/log/cloud-init.log",
            "/var/log/supervisord.log",
            "/opt/parallelcluster/.bootstrapped",
            _PCLUSTER + "cfnconfig",
            _PCLUSTER + "slurm_plugin/*.conf",
            _PCLUSTER + "slurm_plugin/*.json",
            _PCLUSTER + "slurm_plugin/slurm_nodename",
            "/etc/chef/dna.json",
            "/opt/parallelcluster/shared/cluster-config.yaml",
            "/opt/parallelcluster/shared_login_nodes/cluster-config.yaml",
        ),
    ),
    # HyperPod's: what it has written down of the cluster, and what its agents and hooks have done.
    Files(
        (
            "/var/log/provision/*.log",
            "/var/log/aws/clusters/*.log",
            "/opt/ml/config/*.json",
            "/etc/pcluster-postboot/hyperpod.json",
            "/var/spool/slurmd/conf-cache/*.conf",
        ),
    ),
    Files(("/var/log/slurmctld.log", "/var/log/slurmd.log", "/var/log/slurmdbd.log")),
    Files(("/opt/slurm/etc/pcluster/.slurm_plugin/clustermgtd_heartbeat",), HEAD),
    Files(
        (
            "/opt/slurm/etc/*.conf",
            "/opt/slurm/etc/pcluster/*.conf",
            "/opt/slurm/etc/plugstack.conf.d/*",
            "/opt/slurm/etc/scripts/*.d/*",
        ),
        HEAD,
    ),
    Files(
        (
            "/proc/mounts",
            "/proc/meminfo",
            "/proc/uptime",
            "/etc/os-release",
            "/etc/fstab",
            "/etc/docker/daemon.json",
            "/etc/enroot/enroot.conf",
            "/etc/nccl.conf",
            "/etc/prometheus/prometheus.yml",
            "/opt/amazon/efa_installed_packages",
            "/var/log/fabricmanager.log",
            "/var/log/amazon/ssm/errors.log",
            "/var/log/amazon/ssm/amazon-ssm-agent.log",
            "/opt/aws/amazon-cloudwatch-agent/logs/amazon-cloudwatch-agent.log",
        ),
    ),
    Files(("/sys/class/infiniband/*/ports/1/hw_counters/*",), joined="efa-counters"),
    Files(("/var/log/syslog", "/var/log/messages")),
)

OUTPUTS = (
    Output("fleet-status", ("get-compute-fleet-status.sh",), HEAD),
    Output("sinfo-reasons", (_SLURM + "sinfo", "-R", "--noheader", f"--format={REASONS}"), HEAD, shared=True),
    Output("sinfo", (_SLURM + "sinfo", "-N", "-l"), HEAD, shared=True),
    Output("scontrol-partitions", (_SLURM + "scontrol", "show", "partition"), HEAD, shared=True),
    Output("scontrol-nodes", (_SLURM + "scontrol", "show", "node"), HEAD, shared=True),
    Output("squeue", (_SLURM + "squeue", "-l"), HEAD, shared=True),
    Output("sdiag", (_SLURM + "sdiag",), HEAD, shared=True),
    Output("scontrol-config", (_SLURM + "scontrol", "show", "config"), HEAD, shared=True),
    Output("supervisord-status", ("supervisorctl", "status")),
    # The kernel's own messages, of earlier boots too. In syslog, users can call themselves the kernel.
    Output("kernel", ("journalctl", "_TRANSPORT=kernel", "--no-pager", "-o", "short-iso", "-n", "20000")),
    # systemd's own messages about Slurm's daemons. Users can add whole lines to the daemons' logs.
    Output("slurm-units", ("journalctl", "_PID=1", *_DAEMONS, "--no-pager", "-o", "short-iso", "-n", "200")),
    Output("failed-units", ("systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager")),
    Output("nvidia-smi-list", ("nvidia-smi", "-L")),
    Output("nvidia-smi", ("nvidia-smi",)),
    Output("nvidia-smi-query", ("nvidia-smi", "-q"), seconds=60),
    Output("nvidia-smi-topology", ("nvidia-smi", "topo", "-m")),
    Output("nvidia-smi-nvlink", ("nvidia-smi", "nvlink", "--status")),
    Output("dcgm", ("dcgmi", "discovery", "-l")),
    Output("dcgm-health", ("dcgmi", "health", "-c")),
    Output("efa", ("/opt/amazon/efa/bin/fi_info", "-p", "efa", "-t", "FI_EP_RDM")),
    Output("lustre-devices", ("lctl", "dl")),
    Output("lustre-imports", ("lctl", "get_param", "-n", "osc.*.import", "mdc.*.import")),
    Output("processes", ("ps", "-eo", "pid,ppid,user,stat,wchan:32,etime,comm")),
    Output("addresses", ("ip", "-brief", "address")),
    Output("routes", ("ip", "route")),
    Output("sockets", ("ss", "-ltn")),
    Output("memory", ("free", "-m")),
    Output("modules", ("lsmod",)),
    Output("packages-deb", ("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n")),
    Output("packages-rpm", ("rpm", "-qa", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\n"), seconds=60),
)
# Its checks that would change something ask first: the answer is no.
DIAG = Output("pcluster-diag", ("pcluster-diag", "run"), seconds=120, text="n\n" * 50)

# Services beside those of our components.
UNITS = (
    *("pcluster-postboot", "slurmctld", "slurmd", "slurmdbd", "munge", "supervisord", "docker", "containerd"),
    *("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex", "amazon-ssm-agent", "amazon-cloudwatch-agent"),
)
UNIT_PROPERTIES = (
    *("Id", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "Type", "TriggeredBy"),
    *("ConditionResult", "ExecMainStatus", "NRestarts", "StateChangeTimestamp"),
)


def on(source: Any, node_type: str) -> bool:
    """Say whether a source belongs to nodes of a type."""
    return not source.nodes or node_type in source.nodes
