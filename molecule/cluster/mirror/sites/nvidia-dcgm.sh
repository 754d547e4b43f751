# shellcheck shell=bash disable=SC2034,SC2154  # top, work and the like are from lib.sh, which reads description
# developer.download.nvidia.com/compute/cuda/repos: of NVIDIA's CUDA repositories what DCGM and its exporter are in,
# whose programs are stand-ins. As upstream's, the packages have an epoch; the deb repository's list is signed, and of
# the rpm repository the packages.
dcgm_site=$top/developer.download.nvidia.com/compute/cuda/repos
dcgm_machine=$(uname -m | sed s/aarch64/sbsa/)
dcgm_standin=/standins/dcgm
dcgm_libraries=usr/lib/$(uname -m)-linux-gnu # in the deb packages; the rpm packages have them in usr/lib64
dcgm_pinned=4.6.0 dcgm_older=4.4.1 dcgm_legacy=3.3.6
dcgm_exporter_pinned=4.8.2 dcgm_exporter_newer=4.9.0 dcgm_exporter_older=4.8.1

dcgm_program() {  # stand-in program version
  sed "s/@VERSION@/$3/" "$dcgm_standin/$1" > "$work/stage/usr/bin/$2" && chmod 0755 "$work/stage/usr/bin/$2"
}
dcgm_library() {  # name
  mkdir -p "$work/stage/$dcgm_libraries" && echo 'A stand-in.' > "$work/stage/$dcgm_libraries/$1"
}

dcgm_package() {  # name version dependencies in deb's words, and in rpm's; further lines of deb's control file, and of rpm's header
  deb "$1" "$2-1" "$3" "$dcgm_site/ubuntu2404/$dcgm_machine" "${5:-}"
  if [ -d "$work/stage/$dcgm_libraries" ]; then mv "$work/stage/$dcgm_libraries" "$work/stage/usr/lib64"; fi
  rpm_package "$1" "${2#*:}-1" "$4" "$work/dcgm_rpm" "${6:-}"
}

dcgm_core() {
  stage
  dcgm_program nv_hostengine.py nv-hostengine "$1"; dcgm_program dcgmi.py dcgmi "$1"
  cp "$dcgm_standin/nvidia-dcgm.service" "$work/stage/usr/lib/systemd/system/"
  after_install 'id nvidia-dcgm > /dev/null 2>&1 || useradd -Urs /usr/sbin/nologin nvidia-dcgm' \
    'mkdir -p /var/log/nvidia-dcgm' \
    'chown nvidia-dcgm:nvidia-dcgm /var/log/nvidia-dcgm'
}

dcgm() {  # version
  local core=datacenter-gpu-manager-4-core name deb_core rpm_core
  deb_core="$core (= 1:$1-1)" rpm_core="$core = 1:$1-1"
  dcgm_core "$1"; dcgm_library libdcgm.so.4
  dcgm_package $core "1:$1" libc6 "" "Conflicts: datacenter-gpu-manager" $'Epoch: 1\nConflicts: datacenter-gpu-manager'
  for name in cuda12 cuda13 proprietary-cuda12 proprietary-cuda13; do
    stage_nothing "datacenter-gpu-manager-4-$name"; dcgm_package "datacenter-gpu-manager-4-$name" "1:$1" "$deb_core" \
      "$rpm_core" "" "Epoch: 1"
  done
  stage; dcgm_library libdcgmmoduleprofiling.so.4
  dcgm_package datacenter-gpu-manager-4-proprietary "1:$1" "$deb_core" "$rpm_core" "" "Epoch: 1"
}

dcgm_exporter() {  # version
  stage && mkdir -p "$work/stage/etc/dcgm-exporter" "$work/stage/usr/share/dcgm-exporter"
  dcgm_program dcgm_exporter.py dcgm-exporter "$1"
  cp "$dcgm_standin/fields.txt" "$work/stage/usr/share/dcgm-exporter/"
  echo 'DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).' > "$work/stage/etc/dcgm-exporter/default-counters.csv"
  cp "$dcgm_standin/nvidia-dcgm-exporter.service" "$work/stage/usr/lib/systemd/system/"
  dcgm_package datacenter-gpu-manager-exporter "$1" datacenter-gpu-manager-4-core datacenter-gpu-manager-4-core
}

description='a stand-in'
dcgm "$dcgm_pinned"
dcgm "$dcgm_older"
dcgm_core "$dcgm_legacy"; dcgm_package datacenter-gpu-manager "1:$dcgm_legacy" libc6 "" "" "Epoch: 1"
dcgm_exporter "$dcgm_exporter_pinned"
dcgm_exporter "$dcgm_exporter_newer"
dcgm_exporter "$dcgm_exporter_older"
apt_flat "$dcgm_site/ubuntu2404/$dcgm_machine"
cp "$work/key.asc" "$dcgm_site/ubuntu2404/$dcgm_machine/3bf863cc.pub"
mkdir -p "$dcgm_site/amzn2023" && mv "$work/dcgm_rpm/$(uname -m)" "$dcgm_site/amzn2023/$dcgm_machine"
rpm_sign "$dcgm_site/amzn2023/$dcgm_machine"
rpm_repository "$dcgm_site/amzn2023/$dcgm_machine"
cp "$work/key.asc" "$dcgm_site/amzn2023/$dcgm_machine/D42D0685.pub"
pin dcgm "$(jq -nc --arg version "$dcgm_pinned" --arg older "$dcgm_older" --arg legacy "$dcgm_legacy" '{$version, $older, $legacy}')"
pin dcgm_exporter "$(jq -nc --arg version "$dcgm_exporter_pinned" --arg newer "$dcgm_exporter_newer" '{$version, $newer}')"
