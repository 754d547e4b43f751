# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The /proc and /sys of a p5.48xlarge in a cluster, as far as node_exporter's default collectors read them.

Counts are AWS's (p5.48xlarge: 192 vCPUs, 32 network cards with EFA, 8 local NVMe disks), names and formats those of a
Linux 6.8 (Ubuntu 24.04) and of EFA's driver 3.1.0 (amzn-drivers, kernel/linux/efa/src/efa_verbs.c). Numbers are made
up.
"""

from __future__ import annotations

from pathlib import Path

CPUS = 192
EFAS = 32
INTERFACES = ["lo", "docker0", *(f"enp{71 + card}s0" for card in range(EFAS))]
LOCAL_DISKS = 8

# What is mounted, as on a ParallelCluster node with FSx for Lustre: source, mount point, type.
MOUNTS = (
    ("/dev/root", "/", "ext4"),
    ("/dev/nvme0n1p16", "/boot", "ext4"),
    ("/dev/nvme0n1p15", "/boot/efi", "vfat"),
    ("tmpfs", "/run", "tmpfs"),
    ("tmpfs", "/dev/shm", "tmpfs"),
    ("tmpfs", "/run/lock", "tmpfs"),
    ("10.0.0.10:/home", "/home", "nfs4"),
    ("10.0.0.10:/opt/parallelcluster/shared", "/opt/parallelcluster/shared", "nfs4"),
    ("10.0.0.10:/opt/slurm", "/opt/slurm", "nfs4"),
    ("10.0.0.10:/opt/intel", "/opt/intel", "nfs4"),
    ("10.0.1.20@tcp:/abcdefgh", "/fsx", "lustre"),
    ("/dev/mapper/vg.01-lv_ephemeral", "/scratch", "ext4"),
)

EFA_DEVICE = (
    "submitted_cmds completed_cmds cmds_err no_completion_cmds keep_alive_rcvd alloc_pd_err create_qp_err "
    "create_cq_err reg_mr_err alloc_ucontext_err create_ah_err mmap_err"
)
EFA_PORT = (
    "tx_bytes tx_pkts rx_bytes rx_pkts rx_drops send_bytes send_wrs recv_bytes recv_wrs rdma_read_wrs "
    "rdma_read_bytes rdma_read_wr_err rdma_read_resp_bytes rdma_write_wrs rdma_write_bytes rdma_write_wr_err "
    "rdma_write_recv_bytes retrans_bytes retrans_pkts retrans_timeout_events unresponsive_remote_events "
    "impaired_remote_conn_events"
)
MEMINFO = (
    "MemTotal MemFree MemAvailable Buffers Cached SwapCached Active Inactive Active(anon) Inactive(anon) "
    "Active(file) Inactive(file) Unevictable Mlocked SwapTotal SwapFree Zswap Zswapped Dirty Writeback AnonPages "
    "Mapped Shmem KReclaimable Slab SReclaimable SUnreclaim KernelStack PageTables SecPageTables NFS_Unstable "
    "Bounce WritebackTmp CommitLimit Committed_AS VmallocTotal VmallocUsed VmallocChunk Percpu HardwareCorrupted "
    "AnonHugePages ShmemHugePages ShmemPmdMapped FileHugePages FilePmdMapped Unaccepted HugePages_Total "
    "HugePages_Free HugePages_Rsvd HugePages_Surp Hugepagesize Hugetlb DirectMap4k DirectMap2M DirectMap1G"
)
VMSTAT = (
    "nr_free_pages pgpgin pgpgout pswpin pswpout pgalloc_normal pgfree pgfault pgmajfault thp_fault_alloc oom_kill "
    "numa_hit numa_miss"
)
SNMP = {
    "Ip": "Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams InUnknownProtos InDiscards "
    "InDelivers OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs "
    "FragFails FragCreates",
    "Icmp": "InMsgs InErrors InCsumErrors InDestUnreachs OutMsgs OutErrors OutDestUnreachs",
    "Tcp": "RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab "
    "InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors",
    "Udp": "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors",
    "UdpLite": "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti "
    "MemErrors",
}
SNMP6 = (
    "Ip6InReceives Ip6InOctets Ip6OutOctets Icmp6InMsgs Icmp6InErrors Icmp6OutMsgs Udp6InDatagrams Udp6NoPorts "
    "Udp6InErrors Udp6OutDatagrams Udp6RcvbufErrors Udp6SndbufErrors UdpLite6InErrors"
)
NETSTAT = {
    "TcpExt": "SyncookiesSent SyncookiesRecv SyncookiesFailed ListenOverflows ListenDrops TCPTimeouts TCPSynRetrans "
    "TCPRcvQDrop TCPOFOQueue",
    "IpExt": "InOctets OutOctets InMcastPkts",
}
UDP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
NVME = {
    "firmware_rev": "0",
    "model": "Amazon EC2 NVMe Instance Storage",
    "serial": "A1",
    "state": "live",
    "cntlid": "0",
}
NETCLASS = (
    "addr_assign_type addr_len address broadcast carrier carrier_changes carrier_up_count carrier_down_count "
    "dev_id dormant flags ifindex iflink link_mode mtu name_assign_type netdev_group operstate speed duplex "
    "tx_queue_len type"
)


def write(root: Path) -> None:
    """Write the tree below a folder: proc, sys, and the folders on which something is mounted."""
    for path, text in {**_proc(), **_sys()}.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for _source, mount, _kind in MOUNTS:
        (root / mount.lstrip("/")).mkdir(parents=True, exist_ok=True)
    driver = root / "sys/bus/pci/drivers/efa"
    driver.mkdir(parents=True, exist_ok=True)
    for device in _efas():
        (root / f"sys/class/infiniband/{device}/device").mkdir(parents=True)
        (root / f"sys/class/infiniband/{device}/device/driver").symlink_to(driver)


def _efas() -> list[str]:
    return [f"rdmap{71 + card}s0" for card in range(EFAS)]


def _counted(names: str, step: int = 1) -> list[tuple[str, int]]:
    return [(name, (place + 1) * step) for place, name in enumerate(names.split())]


def _table(parts: dict[str, str]) -> str:
    """Two lines for each part: its names, and their values."""
    return "".join(
        f"{part}: {names}\n{part}: {' '.join(str(value) for _name, value in _counted(names))}\n"
        for part, names in parts.items()
    )


def _proc() -> dict[str, str]:
    each = range(CPUS)
    disks = [f"nvme{number}n1" for number in range(LOCAL_DISKS + 1)]
    devices = [*disks, "nvme0n1p1", "nvme0n1p15", "nvme0n1p16", "dm-0", *(f"loop{number}" for number in range(8))]
    cpu = "".join(f"cpu{number} {1000 + number} 20 300 40000 50 6 7 0 0 0\n" for number in each)
    pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=17\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    mounts = [(source, mount, kind, "rw,relatime") for source, mount, kind in MOUNTS]
    mounts += [("proc", "/proc", "proc", "rw"), ("sysfs", "/sys", "sysfs", "rw")]
    return {
        "proc/stat": f"cpu  2000 40 600 80000 100 12 14 0 0 0\n{cpu}intr 123456 0 0\nctxt 987654\nbtime 1700000000\n"
        "processes 4321\nprocs_running 2\nprocs_blocked 0\nsoftirq 99 1 2 3 4 5 6 7 8 9 10\n",
        "proc/loadavg": "1.00 2.00 3.00 2/2000 12345\n",
        "proc/uptime": "86400.00 16588800.00\n",
        "proc/meminfo": "".join(f"{name}: {value} kB\n" for name, value in _counted(MEMINFO, 4096)),
        "proc/vmstat": "".join(f"{name} {value}\n" for name, value in _counted(VMSTAT, 10)),
        "proc/cpuinfo": "".join(f"processor\t: {number}\nmodel name\t: AMD EPYC 7R13\n\n" for number in each),
        "proc/diskstats": "".join(
            f" 259 {place} {device} 1 2 3 4 5 6 7 8 0 9 10 11 12 13 14 15 16\n" for place, device in enumerate(devices)
        ),
        "proc/mdstat": "Personalities : \nunused devices: <none>\n",
        "proc/1/mounts": "".join(f"{' '.join(mount)} 0 0\n" for mount in mounts),
        "proc/1/mountinfo": "".join(
            f"{20 + place} 1 259:{place} / {mount} {options} shared:{place} - {kind} {source} rw\n"
            for place, (source, mount, kind, options) in enumerate(mounts)
        ),
        "proc/pressure/cpu": pressure,
        "proc/pressure/io": pressure,
        "proc/pressure/memory": pressure,
        "proc/schedstat": "version 15\ntimestamp 4300000000\n"
        + "".join(f"cpu{number} 0 0 0 0 0 0 {10**12 + number} {10**9} {10**6}\n" for number in each),
        "proc/net/softnet_stat": "".join(
            f"{number:08x}{' 00000000' * 11} {number:08x} 00000000 00000000\n" for number in each
        ),
        "proc/net/dev": "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast"
        "|bytes    packets errs drop fifo colls carrier compressed\n"
        + "".join(f"{name}: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0\n" for name in INTERFACES),
        "proc/net/arp": "IP address       HW type     Flags       HW address            Mask     Device\n"
        + "".join(f"10.0.0.1{place} 0x1 0x2 06:00:00:00:00:0{place} * {INTERFACES[place]}\n" for place in (2, 3)),
        "proc/net/snmp": _table(SNMP),
        "proc/net/netstat": _table(NETSTAT),
        "proc/net/snmp6": "".join(f"{name} {value}\n" for name, value in _counted(SNMP6)),
        "proc/net/sockstat": "sockets: used 900\nTCP: inuse 100 orphan 0 tw 10 alloc 110 mem 5\nUDP: inuse 6 mem 2\n"
        "UDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n",
        "proc/net/sockstat6": "TCP6: inuse 10\nUDP6: inuse 3\nUDPLITE6: inuse 0\nRAW6: inuse 1\n"
        "FRAG6: inuse 0 memory 0\n",
        "proc/net/udp": UDP,
        "proc/net/udp6": UDP,
        "proc/net/rpc/nfs": f"net 9 0 9 6\nrpc 9 0 9\nproc3 22{' 1' * 22}\nproc4 69{' 1' * 69}\n",
        "proc/sys/fs/file-nr": "4096\t0\t9223372036854775807\n",
        "proc/sys/kernel/random/entropy_avail": "256\n",
        "proc/sys/kernel/random/poolsize": "256\n",
        "proc/sys/kernel/pid_max": "4194304\n",
        "proc/sys/kernel/threads-max": "16000000\n",
        "proc/sys/net/netfilter/nf_conntrack_count": "100\n",
        "proc/sys/net/netfilter/nf_conntrack_max": "262144\n",
    }


def _sys() -> dict[str, str]:
    files = {
        "sys/devices/system/cpu/isolated": "\n",
        "sys/class/dmi/id/sys_vendor": "Amazon EC2\n",
        "sys/class/dmi/id/product_name": "p5.48xlarge\n",
        "sys/class/dmi/id/bios_version": "1.0\n",
        "sys/devices/system/cpu/offline": "\n",
        "etc/os-release": 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n',
    }
    for number in range(CPUS):
        topology = f"sys/devices/system/cpu/cpu{number}/topology"
        files[f"{topology}/core_id"] = f"{number // 2 % 48}\n"
        files[f"{topology}/physical_package_id"] = f"{number // 96}\n"
    for device in _efas():
        top = f"sys/class/infiniband/{device}"
        files.update({f"{top}/{name}": "0\n" for name in ("fw_ver", "board_id", "hca_type", "node_guid")})
        for folder, names in ((top, EFA_DEVICE), (f"{top}/ports/1", EFA_PORT)):
            counters = _counted(f"{names} lifespan", 1000)
            files.update({f"{folder}/hw_counters/{name}": f"{value}\n" for name, value in counters})
        words = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "100 Gb/sec (4X EDR)",
            "link_layer": "Unspecified",
        }
        files.update({f"{top}/ports/1/{name}": f"{word}\n" for name, word in words.items()})
    for place, name in enumerate(INTERFACES):
        words = {"address": "06:00:00:00:00:01", "broadcast": "ff:ff:ff:ff:ff:ff", "operstate": "up", "flags": "0x1003"}
        for file in NETCLASS.split():
            files[f"sys/class/net/{name}/{file}"] = f"{words.get(file, place)}\n"
    for number in range(LOCAL_DISKS + 1):
        files.update({f"sys/class/nvme/nvme{number}/{name}": f"{value}\n" for name, value in NVME.items()})
        files[f"sys/block/nvme{number}n1/queue/rotational"] = "0\n"
        files[f"sys/block/nvme{number}n1/stat"] = "1 2 3 4 5 6 7 8 9 10 11\n"
    return files
