# shellcheck shell=bash disable=SC2034,SC2154  # top, work and the like are from lib.sh, which reads description
# nvidia.github.io/libnvidia-container: the NVIDIA Container Toolkit, all of whose programs are stand-ins. As
# upstream's, its rpm packages are not signed, only their list is.
nvidia_site=$top/nvidia.github.io/libnvidia-container
nvidia_standin=/standins/nvidia-container-toolkit
nvidia_pinned=1.19.1 nvidia_newer=1.20.0 nvidia_older=1.18.2

stage_nvidia() {  # version program...
  local version=$1 program
  shift
  stage
  for program; do sed "s/@VERSION@/$version/" "$nvidia_standin/$program".* > "$work/stage/usr/bin/$program"; done
  chmod -f 0755 "$work"/stage/usr/bin/* || true  # a package without programs has nothing there
}

nvidia_package() {  # name version dependencies in deb's words, and in rpm's
  deb "$1" "$2-1" "$3" "$nvidia_site/stable/deb/$architecture"
  rpm_package "$1" "$2-1" "$4" "$work/nvidia_rpm"
}

nvidia_toolkit() {  # version
  local units=etc/systemd/system script=units_to_1_19.sh
  # From 1.20 on the units are no configuration files.
  [ "$1" != "$nvidia_newer" ] || units=usr/lib/systemd/system script=units_from_1_20.sh
  stage_nothing libnvidia-container1; nvidia_package libnvidia-container1 "$1" libc6 ""
  stage_nvidia "$1" nvidia-container-cli
  nvidia_package libnvidia-container-tools "$1" "libc6, libnvidia-container1 (>= $1-1)" "libnvidia-container1 >= $1-1"
  stage_nvidia "$1" nvidia-ctk nvidia-container-runtime
  mkdir -p "$work/stage/$units" "$work/stage/etc/nvidia-container-toolkit"
  cp "$nvidia_standin"/*.service "$nvidia_standin"/*.path "$work/stage/$units/"
  cp "$nvidia_standin"/*.env "$work/stage/etc/nvidia-container-toolkit/"
  after_install "$(cat "$nvidia_standin/$script")"
  nvidia_package nvidia-container-toolkit-base "$1" "" ""
  stage_nvidia "$1" nvidia-container-runtime-hook
  after_install 'ln -sf /usr/bin/nvidia-container-runtime-hook /usr/bin/nvidia-container-toolkit'
  nvidia_package nvidia-container-toolkit "$1" \
    "nvidia-container-toolkit-base (= $1-1), libnvidia-container-tools (= $1-1)" \
    "nvidia-container-toolkit-base = $1-1, libnvidia-container-tools = $1-1"
}

nvidia_lists() {
  local list=$nvidia_site/stable/deb/nvidia-container-toolkit.list rpm=$nvidia_site/stable/rpm
  apt_flat "$nvidia_site/stable/deb/$architecture"
  # shellcheck disable=SC2016  # $(ARCH) and $basearch are apt's and dnf's
  printf '%s\n' 'deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /' \
    '#deb https://nvidia.github.io/libnvidia-container/experimental/deb/$(ARCH) /' > "$list"
  mkdir -p "$rpm" && mv "$work/nvidia_rpm/$(uname -m)" "$rpm/"
  rpm_repository "$rpm/$(uname -m)"
  # shellcheck disable=SC2016
  printf '%s\n' '[nvidia-container-toolkit]' 'name=nvidia-container-toolkit' \
    'baseurl=https://nvidia.github.io/libnvidia-container/stable/rpm/$basearch' \
    'repo_gpgcheck=1' 'gpgcheck=0' 'enabled=1' 'gpgkey=https://nvidia.github.io/libnvidia-container/gpgkey' \
    'sslverify=1' \
    'sslcacert=/etc/pki/tls/certs/ca-bundle.crt' > "$rpm/nvidia-container-toolkit.repo"
  cp "$work/key.asc" "$nvidia_site/gpgkey"
}

description='a stand-in'
nvidia_toolkit "$nvidia_pinned"
nvidia_toolkit "$nvidia_newer"
nvidia_toolkit "$nvidia_older"
nvidia_lists
pin nvidia_container_toolkit "$(jq -nc --arg version "$nvidia_pinned" --arg newer "$nvidia_newer" '{$version, $newer}')"
