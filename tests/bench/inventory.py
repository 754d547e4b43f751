#!/usr/bin/env python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the inventory costs, beside amazon.aws.aws_ec2 and a bare boto3 loop on the same instances.

    python tests/bench/inventory.py [--quick] [--json FILE]

A canned EC2 endpoint on loopback, in a process of its own, serves pages that were rendered before anything is timed.
Both plugins make the same groups; that is checked, not assumed. Compare the ratios of one run, never seconds of two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from figures import Figure, run

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
REGION = "us-east-1"
PAGE = 1000
NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"

# --- the canned endpoint -------------------------------------------------------------------------------------------

CLUSTERS = ("alpha", "beta", "gamma", "delta")
QUEUES = (
    ("gpu", "p5", "p5.48xlarge", "EFA=true"),
    ("gpu", "g6", "g6.12xlarge", "EFA=NONE"),
    ("cpu", "c7i", "c7i.48xlarge", "EFA=NONE"),
    ("hpc", "hpc7a", "hpc7a.96xlarge", "EFA=true"),
)


def node(number: int) -> dict[str, str]:
    """What the instance with this number is: a head and two login nodes for each cluster, then compute nodes."""
    cluster = CLUSTERS[number % len(CLUSTERS)]
    place = number // len(CLUSTERS)
    tags = {
        "parallelcluster:cluster-name": cluster,
        "parallelcluster:attributes": "ubuntu2204, slurm, 3.16.1, x86_64",
        "parallelcluster:filesystem": "efs=0, multiebs=1, raid=0, fsx=1",
        "parallelcluster:version": "3.16.1",
        "aws:cloudformation:stack-name": cluster,
        "aws:cloudformation:logical-id": "LaunchTemplate",
        "Project": "language-models",
    }
    if place < 3:
        kind = "HeadNode" if place == 0 else "LoginNode"
        tags.update({"parallelcluster:networking": "EFA=NONE", "parallelcluster:node-type": kind, "Name": kind})
        if place:
            tags["parallelcluster:login-nodes-pool"] = "people"
        return {"type": "m7i.4xlarge", **{f"tag {key}": value for key, value in tags.items()}}
    queue, resource, instance_type, networking = QUEUES[place % len(QUEUES)]
    tags.update(
        {
            "parallelcluster:networking": networking,
            "parallelcluster:node-type": "Compute",
            "Name": "Compute",
            "parallelcluster:queue-name": queue,
            "parallelcluster:compute-resource-name": resource,
        }
    )
    return {"type": instance_type, **{f"tag {key}": value for key, value in tags.items()}}


GROUP_SET = (
    "<groupSet><item><groupId>sg-0a1b2c3d4e5f60718</groupId><groupName>alpha-ComputeSecurityGroup</groupName></item>"
    "<item><groupId>sg-0b2c3d4e5f6071829</groupId><groupName>fsx-lustre</groupName></item></groupSet>"
)


def render_card(number: int, card: int, address: str) -> str:
    addresses = (
        f"<privateIpAddress>{address}</privateIpAddress>"
        f"<privateDnsName>ip-{address.replace('.', '-')}.ec2.internal</privateDnsName>"
        f"<privateIpAddressesSet><item><privateIpAddress>{address}</privateIpAddress>"
        f"<privateDnsName>ip-{address.replace('.', '-')}.ec2.internal</privateDnsName><primary>true</primary></item>"
        "</privateIpAddressesSet>"
        if card == 0
        else "<privateIpAddressesSet/>"
    )
    return (
        f"<item><networkInterfaceId>eni-{number:08x}{card:09x}</networkInterfaceId>"
        "<subnetId>subnet-0f1e2d3c4b5a69788</subnetId><vpcId>vpc-0123456789abcdef0</vpcId>"
        "<description>AWS ParallelCluster compute instance network interface of a fleet</description>"
        f"<ownerId>123456789012</ownerId><status>in-use</status><macAddress>0e:{card:02x}:00:11:22:33</macAddress>"
        f"{addresses}<sourceDestCheck>true</sourceDestCheck>{GROUP_SET}"
        f"<attachment><attachmentId>eni-attach-{number:08x}{card:09x}</attachmentId>"
        f"<deviceIndex>{min(card, 1)}</deviceIndex>"
        "<status>attached</status><attachTime>2026-11-20T08:15:30.000Z</attachTime>"
        f"<deleteOnTermination>true</deleteOnTermination><networkCardIndex>{card}</networkCardIndex>"
        "<enaSrdSpecification><enaSrdEnabled>false</enaSrdEnabled></enaSrdSpecification></attachment>"
        "<ipv6AddressesSet/><interfaceType>efa</interfaceType><operator><managed>false</managed></operator></item>"
    )


def render_instance(number: int, cards: int) -> str:
    """One instance, with EC2's elements in their order: 4.9 KB, and 1.1 KB for each further network card."""
    what = node(number)
    tags = "".join(
        f"<item><key>{key[4:]}</key><value>{value}</value></item>"
        for key, value in what.items()
        if key.startswith("tag ")
    )
    address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
    dns = f"ip-{address.replace('.', '-')}.ec2.internal"
    return (
        f"<item><instanceId>i-{number:017x}</instanceId><imageId>ami-0fedcba9876543210</imageId>"
        f"<instanceState><code>16</code><name>running</name></instanceState><privateDnsName>{dns}</privateDnsName>"
        "<dnsName/><reason/><keyName>cluster-admin</keyName><amiLaunchIndex>0</amiLaunchIndex><productCodes/>"
        f"<instanceType>{what['type']}</instanceType><launchTime>2026-11-20T08:15:30.000Z</launchTime>"
        "<placement><availabilityZone>us-east-1a</availabilityZone><availabilityZoneId>use1-az6</availabilityZoneId>"
        "<groupName>alpha-placement</groupName><groupId>pg-0a1b2c3d4e5f60718</groupId><tenancy>default</tenancy></placement>"
        "<monitoring><state>disabled</state></monitoring><subnetId>subnet-0f1e2d3c4b5a69788</subnetId>"
        f"<vpcId>vpc-0123456789abcdef0</vpcId><privateIpAddress>{address}</privateIpAddress>"
        f"<sourceDestCheck>true</sourceDestCheck>{GROUP_SET}<architecture>x86_64</architecture>"
        "<rootDeviceType>ebs</rootDeviceType><rootDeviceName>/dev/sda1</rootDeviceName><blockDeviceMapping><item>"
        f"<deviceName>/dev/sda1</deviceName><ebs><volumeId>vol-{number:017x}</volumeId><status>attached</status>"
        "<attachTime>2026-11-20T08:15:31.000Z</attachTime><deleteOnTermination>true</deleteOnTermination>"
        "<operator><managed>false</managed></operator></ebs></item></blockDeviceMapping>"
        "<virtualizationType>hvm</virtualizationType><clientToken>fleet-0b9f4b4e-1c4d-4a6e-9d7a-3f9b2f1d5c11-0</clientToken>"
        f"<tagSet>{tags}</tagSet><hypervisor>xen</hypervisor><networkInterfaceSet>"
        + "".join(render_card(number, card, address) for card in range(cards))
        + "</networkInterfaceSet><iamInstanceProfile>"
        "<arn>arn:aws:iam::123456789012:instance-profile/parallelcluster/alpha/alpha-InstanceProfile</arn><id>AIPA0123456789ABCDEFG</id></iamInstanceProfile><ebsOptimized>true</ebsOptimized>"
        "<enaSupport>true</enaSupport><cpuOptions><coreCount>96</coreCount><threadsPerCore>2</threadsPerCore></cpuOptions>"
        "<enclaveOptions><enabled>false</enabled></enclaveOptions><metadataOptions><state>applied</state>"
        "<httpTokens>required</httpTokens><httpPutResponseHopLimit>1</httpPutResponseHopLimit><httpEndpoint>enabled</httpEndpoint>"
        "<httpProtocolIpv6>disabled</httpProtocolIpv6><instanceMetadataTags>disabled</instanceMetadataTags></metadataOptions>"
        "<currentInstanceBootMode>legacy-bios</currentInstanceBootMode><platformDetails>Linux/UNIX</platformDetails>"
        "<usageOperation>RunInstances</usageOperation><usageOperationUpdateTime>2026-11-20T08:15:30.000Z</usageOperationUpdateTime>"
        "<operator><managed>false</managed></operator></item>"
    )


def render_page(first: int, count: int, cards: int, token: str | None) -> bytes:
    reservations = "".join(
        f"<item><reservationId>r-{number:017x}</reservationId><ownerId>123456789012</ownerId><groupSet/>"
        f"<instancesSet>{render_instance(number, cards)}</instancesSet></item>"
        for number in range(first, first + count)
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<DescribeInstancesResponse xmlns="{NAMESPACE}">'
        f"<requestId>0b9f4b4e-1c4d-4a6e-9d7a-3f9b2f1d5c11</requestId><reservationSet>{reservations}</reservationSet>"
        + (f"<nextToken>{token}</nextToken>" if token else "")
        + "</DescribeInstancesResponse>"
    ).encode()


def serve(instances: int, cards: int) -> None:
    """Render all pages, print the port, answer DescribeInstances until killed."""
    pages = []
    for first in range(0, instances, PAGE):
        last = first + PAGE >= instances
        pages.append(render_page(first, min(PAGE, instances - first), cards, None if last else str(len(pages) + 1)))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            assert form["Action"] == ["DescribeInstances"], form
            body = pages[int(form.get("NextToken", ["0"])[0])]
            self.send_response(200)
            self.send_header("Content-Type", "text/xml;charset=UTF-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(json.dumps({"port": server.server_port, "bytes": sum(map(len, pages))}), flush=True)
    server.serve_forever()


# --- what is measured ----------------------------------------------------------------------------------------------

BARE = f"""
import json, sys, boto3
paginator = boto3.client("ec2", region_name="{REGION}").get_paginator("describe_instances")
pages = paginator.paginate(PaginationConfig={{"PageSize": {PAGE}}})
json.dump([page["Reservations"] for page in pages], sys.stdout, default=str)
"""

OURS = f"""
plugin: pcluster.postboot.pcluster
regions: [{REGION}]
"""

AWS_EC2 = f"""
plugin: amazon.aws.aws_ec2
regions: [{REGION}]
hostnames: [instance-id]
filters: {{instance-state-name: running}}
groups:
  pcluster_gpu: instance_type is match('(p[0-9]|g[0-9]|gr[0-9])')
  pcluster_efa: tags['parallelcluster:networking'] == 'EFA=true'
keyed_groups:
  - prefix: pcluster
    key: "{{'HeadNode': 'head', 'LoginNode': 'login', 'Compute': 'compute'}}[tags['parallelcluster:node-type']]"
  - {{prefix: pcluster_cluster, key: "tags['parallelcluster:cluster-name']"}}
  - {{prefix: pcluster_queue, key: "tags['parallelcluster:queue-name']"}}
  - {{prefix: pcluster_compute_resource, key: "tags['parallelcluster:compute-resource-name']"}}
  - {{prefix: pcluster_pool, key: "tags['parallelcluster:login-nodes-pool']"}}
"""
ROUNDS = 2  # of each, of which the fastest counts; aws_ec2 runs once
NOT_COMPARED = {"all", "ungrouped", "pcluster", "aws_ec2"}


@dataclass
class Cost:
    wall_s: float
    cpu_s: float
    max_rss_mb: float
    output_mb: float


def cost_of(command: list[str], environment: dict[str, str], output: Path) -> Cost:
    messages = output.with_suffix(".messages")
    with output.open("wb") as stream, messages.open("wb") as errors:
        start = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=errors, cwd=output.parent)
        _pid, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{messages.read_text()}")
    return Cost(
        round(wall, 2),
        round(usage.ru_utime + usage.ru_stime, 2),
        round(usage.ru_maxrss / 1024, 1),
        round(output.stat().st_size / 1e6, 1),
    )


def groups_of(output: Path) -> dict[str, int]:
    """How many hosts each group of an `ansible-inventory --list` has, those of its children included."""
    data = json.loads(output.read_bytes())

    def hosts(group: str) -> set[str]:
        entry = data.get(group, {})
        return set(entry.get("hosts", ())).union(*(hosts(child) for child in entry.get("children", ())))

    counts = {group: len(hosts(group)) for group in data if group != "_meta"}
    return {group: count for group, count in sorted(counts.items()) if count and group not in NOT_COMPARED}


def run_size(instances: int, cards: int, scratch: Path) -> list[Figure]:
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), "--serve", str(instances), str(cards)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        served = json.loads(server.stdout.readline())
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(scratch),
            "LANG": "C.UTF-8",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{served['port']}",
            "ANSIBLE_COLLECTIONS_PATH": str(BIN.parent / "collections"),
            "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_DEPRECATION_WARNINGS": "false",
        }
        inventory = str(BIN / "ansible-inventory")
        commands = {
            "boto3": [sys.executable, "-c", BARE],
            "pcluster": [sys.executable, inventory, "-i", "bench.pcluster.yml", "--list"],
            "aws_ec2": [sys.executable, inventory, "-i", "bench.aws_ec2.yml", "--list"],
        }
        (scratch / "bench.pcluster.yml").write_text(OURS)
        (scratch / "bench.aws_ec2.yml").write_text(AWS_EC2)
        costs: dict[str, list[Cost]] = {name: [] for name in commands}
        for turn in range(ROUNDS):
            for name, command in commands.items():
                if name != "aws_ec2" or turn == 0:
                    costs[name].append(cost_of(command, environment, scratch / f"{name}.json"))
        ours, theirs = groups_of(scratch / "pcluster.json"), groups_of(scratch / "aws_ec2.json")
        if ours != theirs:
            raise SystemExit(f"the two plugins made different groups:\n{ours}\n{theirs}")
    finally:
        server.kill()
        server.wait()
    best = {name: min(several, key=lambda cost: cost.wall_s) for name, several in costs.items()}
    bare, own, other = best["boto3"], best["pcluster"], best["aws_ec2"]
    large, wide = instances == 4000, cards == 32
    figures = [
        Figure(
            f"{instances} instances, {cards} network card(s): XML of each", served["bytes"] / instances / 1000, "KB"
        ),
        Figure("  groups", len(ours)),
    ]
    for name, cost in best.items():
        figures += [
            Figure(f"  {name}: time", cost.wall_s, "s"),
            Figure(f"  {name}: CPU", cost.cpu_s, "s"),
            Figure(f"  {name}: memory", cost.max_rss_mb, "MB"),
            Figure(f"  {name}: JSON", cost.output_mb, "MB"),
        ]
    return [
        *figures,
        Figure("  CPU of bare boto3", own.cpu_s / bare.cpu_s, "x"),
        Figure("  time of bare boto3", own.wall_s / bare.wall_s, "x", at_most=1.25 if large else None),
        Figure("  as fast as bare boto3", bare.wall_s / own.wall_s, "x", at_least=1.6 if wide else None),
        Figure("  as fast as aws_ec2", other.wall_s / own.wall_s, "x", at_least=8 if large else None),
        Figure("  memory of aws_ec2", own.max_rss_mb / other.max_rss_mb, "x", at_most=1 / 3 if wide else None),
    ]


def measure(quick: bool) -> list[Figure]:
    sizes = [(100, 1), (1000, 1)] if quick else [(100, 1), (1000, 1), (4000, 1), (1000, 32)]
    with tempfile.TemporaryDirectory(prefix="pcluster-bench-") as scratch:
        return [figure for size in sizes for figure in run_size(*size, Path(scratch))]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        title = "The inventory plugin beside amazon.aws.aws_ec2 and a bare boto3 loop"
        sys.exit(run(title, measure, about=__doc__, quick="only 100 and 1,000 instances"))
