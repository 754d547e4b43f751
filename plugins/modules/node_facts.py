#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.node_facts."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_facts
short_description: Tell what a node of AWS ParallelCluster or SageMaker HyperPod is
version_added: 0.1.0
description:
  - Reads, in one task, who a node is in its cluster, what hardware it has, which file systems it should have and has,
    and which components are installed, and returns it as C(ansible_facts['pcluster']).
  - It reads files only, apart from one C(systemctl show), one C(rpm -q) on the systems that use rpm, and
    C(scontrol --version) where Slurm brought no header. It never asks the network, the instance metadata service or
    C(setup).
  - A file that is missing or malformed is named in the returned C(problems), and never ends the task.
  - Every shared file system that the cluster promises is asked for first, so that automounts happen. One that does
    not answer within 6 seconds is named in C(problems) and in C(mounts.missing), and nothing on it is read.
  - While C(setup-ephemeral.service) or C(dlami-nvme.service) sets up the disks of the instance store, it waits, for 10
    minutes at most.
options:
  root:
    description:
      - Folder under which the node's files lie.
      - With anything but V(/) no program is run, no mount point is touched, the host name comes from
        C(/etc/hostname), the architecture from a program in the tree, and packages of rpm systems are not known.
    type: path
    default: /
  overrides:
    description:
      - Facts that are put over what was found, last, in the shape of RV(ansible_facts.pcluster). Dictionaries are
        merged, lists replaced.
      - A fact that does not exist, or a value of another type, fails the task with one line.
      - RV(ansible_facts.pcluster.go_architecture) follows an overridden C(architecture).
    type: dict
    default: {}
  boot_timeout:
    description:
      - Seconds to wait for the end of the node's boot, which C(/run/cloud-init/result.json) shows, because a node that
        boots lacks file systems and programs that are to come. The task fails if the boot lasts longer. V(0) does not
        wait.
      - A run on the node itself never waits, because it may be a part of the boot. Check mode waits for 10 seconds at
        most.
    type: int
    default: 0
  timeout:
    description:
      - Seconds after which the task fails with one line that names the path which could not be read. It happens only
        where a file system outside of the promised mounts is dead.
    type: int
    default: 10
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.linux
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Read what the node is
  pcluster.postboot.node_facts:

- name: Stop where there is no cluster
  ansible.builtin.assert:
    that: ansible_facts['pcluster']['platform'] is not none
    fail_msg: "{{ ansible_facts['pcluster']['reason'] }}"

- name: Read a node whose Slurm is elsewhere, and whose GPUs shall be left alone
  pcluster.postboot.node_facts:
    overrides:
      slurm:
        prefix: /shared/slurm
      gpus:
        count: 0
"""

RETURN = r"""
ansible_facts:
  description: The facts to add to the host.
  returned: success
  type: dict
  contains:
    pcluster:
      description: What the node is. Every key is always there; what is not known is C(null).
      returned: success
      type: dict
      contains:
        is_parallelcluster:
          description: >-
            Whether the node's type is known from C(/etc/parallelcluster/cfnconfig), or from C(/etc/chef/dna.json)
            without it.
          type: bool
          returned: always
        platform:
          description: >-
            V(parallelcluster), or V(hyperpod) for SageMaker HyperPod with Slurm, on a node whose type is known; C(null)
            on any other machine, such as the monitoring instance. A node of HyperPod has
            C(/opt/ml/config/resource_config.json), and finds itself in it by its address (C(CustomerIpAddress)).
          type: str
          returned: always
          version_added: 0.2.0
        reason:
          description: >-
            One line on why RV(ansible_facts.pcluster.platform) is C(null); C(null) where it is known.
          type: str
          returned: always
        node_type:
          description: >-
            V(head), V(login) or V(compute), from C(cfn_node_type) (HeadNode, LoginNode, ComputeFleet) of cfnconfig,
            else C(node_type) of C(dna.json). On HyperPod from the file C(/etc/pcluster-postboot/hyperpod.json), which
            C(publish) writes (Controller, Login, Compute), else from C(controller_group) and C(login_group) of
            C(/opt/ml/config/provisioning_parameters.json). Of several controllers the one that
            C(PrimaryControllerIp) of C(resource_config.json) names is the V(head), and the others are V(login).
            V(monitoring) on a machine outside of the clusters where C(/etc/pcluster-postboot/node.json) has
            C(node_type) V(monitoring).
          type: str
          returned: always
        cluster:
          description: >-
            Name of the cluster, from C(stack_name) of cfnconfig, else of C(dna.json); C(ClusterName) on HyperPod. On
            the monitoring instance C(name) of C(node.json), V(monitoring) without one.
          type: str
          returned: always
        region:
          description: >-
            AWS region, from C(cfn_region) of cfnconfig, else C(dna.json), else C(slurm_node_spec.json); that of
            C(ClusterArn) on HyperPod. On the monitoring instance C(region) of C(node.json).
          type: str
          returned: always
        vpc:
          description: The VPC whose clusters the monitoring instance looks at, from C(vpc) of C(node.json).
          type: str
          returned: always
        scheduler:
          description: The scheduler, from C(cfn_scheduler) of cfnconfig, else C(dna.json).
          type: str
          returned: always
        cluster_user:
          description: >-
            The cluster's default user, from C(cfn_cluster_user) of cfnconfig, else C(dna.json), else the default user
            of the operating system.
          type: str
          returned: always
        node_name:
          description: >-
            On a compute node its name in Slurm, from C(slurm_nodename) or C(slurm_node_spec.json) in
            C(/etc/parallelcluster/slurm_plugin); elsewhere the short host name. On HyperPod C(ip-) and the address.
          type: str
          returned: always
        queue:
          description: >-
            Queue of a compute node, from C(cfn_scheduler_queue_name) of cfnconfig, else C(dna.json), else
            C(slurm_node_spec.json). On HyperPod its instance group.
          type: str
          returned: always
        compute_resource:
          description: Compute resource of a compute node, from C(slurm_node_spec.json), else C(dna.json).
          type: str
          returned: always
        instance_group:
          description: Instance group of a node of HyperPod.
          type: str
          returned: always
          version_added: 0.2.0
        head_node_ip:
          description: >-
            Private address of the head node, from C(cfn_head_node_private_ip) of cfnconfig, else
            C(head_node_private_ip) of C(dna.json); C(PrimaryControllerIp) on HyperPod. Usually C(null) on the head node
            itself.
          type: str
          returned: always
        instance_id:
          description: >-
            EC2 instance, from C(slurm_node_spec.json) or HyperPod's C(resource_config.json), else the DMI board asset
            tag, else C(/var/lib/cloud/data/instance-id).
          type: str
          returned: always
        instance_type:
          description: >-
            EC2 instance type, from C(slurm_node_spec.json) or HyperPod's C(resource_config.json) (without its C(ml.)),
            else the DMI product name.
          type: str
          returned: always
        instance_types:
          description: >-
            On the controller of HyperPod the instance type of each node, by the node's name in Slurm, from
            C(resource_config.json); empty elsewhere, as ParallelCluster tells the types among the features in Slurm.
          type: dict
          returned: always
          version_added: 0.2.0
        os:
          description: >-
            The operating system, from C(/etc/os-release): its C(id), C(version) and C(codename) as written there, its
            C(family) (V(debian) or V(redhat)), and its C(name) in ParallelCluster's spelling, such as V(ubuntu2404),
            V(alinux2023) or V(rocky9).
          type: dict
          returned: always
        architecture:
          description: V(x86_64) or V(aarch64), from the running kernel.
          type: str
          returned: always
        go_architecture:
          description: V(amd64) or V(arm64), as release files of Go programs and Debian name it.
          type: str
          returned: always
        glibc:
          description: >-
            Version of the C library of the running system, such as V(2.35). A program that was compiled with a newer
            one may not start here.
          type: str
          returned: always
          version_added: 0.2.0
        version:
          description: ParallelCluster's version, from C(/opt/parallelcluster/.bootstrapped).
          type: str
          returned: always
        slurm:
          description: >-
            C(prefix) is V(/opt/slurm) where that folder is there. C(version) comes from
            C(include/slurm/slurm_version.h) in it, else from C(bin/scontrol --version).
          type: dict
          returned: always
        gpus:
          description: >-
            NVIDIA GPUs, from C(/sys/bus/pci/devices) (vendor 10de, class 0300 or 0302): C(count), C(devices) (each
            with C(address) and C(id), such as V(10de:2330)), and C(driver), the version in
            C(/proc/driver/nvidia/version) or C(/sys/module/nvidia/version), C(null) where none is loaded.
          type: dict
          returned: always
        nvswitch:
          description: "C(count) of NVSwitches, from C(/sys/bus/pci/devices) (10de:1af1 and 10de:22a3)."
          type: dict
          returned: always
        efa:
          description: >-
            EFA: C(count) and names (C(devices)) of what C(/sys/class/infiniband) has from the efa driver,
            C(pci_count) of EFA functions in C(/sys/bus/pci/devices), and C(driver), the version of the kernel module.
          type: dict
          returned: always
        neuron:
          description: >-
            AWS Neuron (Trainium, Inferentia): the number of C(devices) in C(/sys/bus/pci/devices) (vendor 1d0f), the
            number of physical C(cores) that the driver has (C(core_count) in C(/sys/devices/virtual/neuron_device)),
            C(driver), the version of the kernel module, C(null) where none is loaded, and C(tools), the version of
            aws-neuronx-tools, C(null) without them.
          type: dict
          returned: always
        scratch:
          description: >-
            Folder on local scratch storage: the first of C(cfn_ephemeral_dir), C(ephemeral_dir) of C(dna.json),
            C(/opt/dlami/nvme), C(/opt/sagemaker) on HyperPod, C(/scratch) and C(/local_scratch) which is the mount of a
            local file system.
          type: str
          returned: always
        mounts:
          description: >-
            C(wanted) is what C(dna.json) promises (its fsx, efs, ebs and raid keys, and on compute and login nodes
            C(/home) and C(/opt/slurm)), or on HyperPod C(hyperpod.json) or the parameters, each with C(path), C(type)
            (V(lustre), V(nfs), V(efs), V(ebs)) and C(source). C(found) lists those, and all other network file systems,
            in C(/proc/self/mounts), each with C(path), C(type), C(source) and C(options). C(missing) lists the paths
            that are wanted and not mounted, or do not answer; the stand-in of an automount is not a mount.
          type: dict
          returned: always
        imds_secured:
          description: >-
            Whether the head and login nodes keep ordinary users from the instance metadata service, from
            C(head_node_imds_secured) of C(dna.json).
          type: bool
          returned: always
        exporter_ports:
          description: >-
            On HyperPod those of the ports 9100, 9109, 9341 and 9400 that exporters of others serve: those which
            HyperPod's collector scrapes (C(/etc/otel/config.yaml)), and those on which something listens
            (C(/proc/net/tcp)), without those of this collection's own exporters.
          type: list
          elements: int
          returned: always
          version_added: 0.2.0
        gpu_jobs_dir:
          description: >-
            Folder in which the platform itself notes the jobs of each GPU, by a prolog of the AMI: HyperPod's
            V(/run/slurm/dcgm-job-mapping), where C(700_dcgm_job_map_register.sh) is there.
          type: str
          returned: always
          version_added: 0.2.0
        components:
          description: >-
            Version of each component: C(null) where it is absent, V(unknown) where it is there and does not tell.
            Read from version files (C(/opt/amazon/efa_installed_packages), C(CWAGENT_VERSION), C(version.json) of
            CUDA, C(/sys/module)), from the receipts in C(/var/lib/pcluster-postboot/receipts), then from the package
            database.
          type: dict
          returned: always
        image_build:
          description: Whether no systemd runs here (C(/run/systemd/system) is missing), as in an image build.
          type: bool
          returned: always
        container:
          description: >-
            Whether the node is a container, from C(/run/.containerenv), C(/.dockerenv) or C(/run/systemd/container).
          type: bool
          returned: always
        problems:
          description: What was wrong with the files or the hardware, one line each; an empty list when all was well.
          type: list
          elements: str
          returned: always
      sample:
        is_parallelcluster: true
        platform: parallelcluster
        reason: null
        node_type: compute
        cluster: alpha
        region: us-east-2
        vpc: null
        scheduler: slurm
        cluster_user: ubuntu
        node_name: gpu-st-p5-1
        queue: gpu
        compute_resource: p5
        instance_group: null
        head_node_ip: 10.0.0.10
        instance_id: i-0123456789abcdef0
        instance_type: p5.48xlarge
        instance_types: {}
        os: {id: ubuntu, version: "24.04", codename: noble, family: debian, name: ubuntu2404}
        architecture: x86_64
        go_architecture: amd64
        glibc: "2.39"
        version: 3.16.1
        slurm: {prefix: /opt/slurm, version: 25.11.8}
        gpus: {count: 1, devices: [{address: "0000:53:00.0", id: "10de:2330"}], driver: 595.71.05}
        nvswitch: {count: 4}
        efa: {count: 1, devices: [rdmap79s0], pci_count: 1, driver: 3.3.0g}
        neuron: {devices: 0, cores: 0, driver: null, tools: null}
        scratch: /scratch
        mounts:
          wanted: [{path: /fsx, type: lustre, source: "fs-0123456789abcdef0.fsx.us-east-2.amazonaws.com@tcp:/abcdefgh"}]
          found: [{path: /fsx, type: lustre, source: "10.0.1.20@tcp:/abcdefgh", options: "rw,noatime,flock,user_xattr"}]
          missing: []
        imds_secured: true
        exporter_ports: []
        gpu_jobs_dir: null
        components: {docker: null, enroot: 4.2.1, pyxis: unknown, efa: 1.51.0}
        image_build: false
        container: false
        problems: []
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import cloud_init
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts as node_facts
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage


def work(module: AnsibleModule) -> dict[str, Any]:
    """Return the facts of this node."""
    params = module.params
    if params["boot_timeout"] > 0 and cloud_init.booting():
        return {"boots": True}  # the action waits, and asks again
    if params["root"] == "/":
        storage.wait_for_setup(node_facts.run_program)
    try:
        facts = node_facts.read_node_within(params["timeout"], params["root"], params["overrides"])
    except (ValueError, RuntimeError) as error:
        raise Problem(str(error)) from error
    return {"ansible_facts": {"pcluster": facts}}


def main() -> None:
    """Run the module."""
    serve(
        {
            "root": {"type": "path", "default": "/"},
            "overrides": {"type": "dict", "default": {}},
            "timeout": {"type": "int", "default": 10},
            "boot_timeout": {"type": "int", "default": 0},
        },
        work,
        alive=False,  # it comes before the lock is taken
    )


if __name__ == "__main__":
    main()
