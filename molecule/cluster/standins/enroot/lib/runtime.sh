# shellcheck shell=bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: containers, which are directories in ENROOT_DATA_PATH. `enroot-nsenter` runs this file again, inside the new
# namespaces.
# shellcheck disable=SC2030,SC2031  # ENROOT_ROOTFS is set for one subshell, in which hooks and what prepares them run
# shellcheck source=/dev/null
source "$ENROOT_LIBRARY_PATH/common.sh"

lock_file=/.lock
environ_file=$ENROOT_RUNTIME_PATH/environment
mount_file=$ENROOT_RUNTIME_PATH/fstab
rc_file=$ENROOT_RUNTIME_PATH/rc

# The path of a container, which need not exist.
runtime::rootfs() {  # name
  [ -n "$1" ] || common::err "Invalid argument"
  [[ $1 != */* ]] || common::err "Invalid argument: $1"
  common::realpath "$ENROOT_DATA_PATH/$1"
}

runtime::existing_rootfs() {  # name
  local rootfs
  rootfs=$(runtime::rootfs "$1")
  [ -d "$rootfs" ] || common::err "No such file or directory: $rootfs"
  echo "$rootfs"
}

runtime::new_rootfs() {  # name
  local rootfs
  rootfs=$(runtime::rootfs "$1")
  if [ -e "$rootfs" ]; then
    [ -n "${ENROOT_FORCE_OVERRIDE-}" ] || common::err "File already exists: $rootfs"
    common::rmall "$rootfs"
  fi
  echo "$rootfs"
}

runtime::create() {  # image name
  local image rootfs
  common::checkcmd unsquashfs find
  [ -n "$1" ] || common::err "Invalid argument"
  image=$(common::realpath "$1")
  [ -f "$image" ] || common::err "No such file or directory: $image"
  unsquashfs -s "$image" > /dev/null 2>&1 || common::err "Invalid image format: $image"
  rootfs=$(runtime::new_rootfs "${2:-$(basename "$image" .sqsh)}")
  common::log INFO "Extracting squashfs filesystem..."
  unsquashfs -no-progress -processors "$ENROOT_MAX_PROCESSORS" -user-xattrs -d "$rootfs" "$image" >&2
  common::fixperms "$rootfs"
}

runtime::remove() {  # name
  local rootfs answer=
  rootfs=$(runtime::existing_rootfs "$1")
  [ -n "${ENROOT_FORCE_OVERRIDE-}" ] || read -r -e -p "Do you really want to delete $rootfs? [y/N] " answer
  if [[ -n ${ENROOT_FORCE_OVERRIDE-} || $answer == [yY] ]]; then common::rmall "$rootfs"; fi
}

# By -f, each container with the processes that run in it.
runtime::list() {  # fancy
  local name pid at
  declare -A names=() processes=()
  cd "$ENROOT_DATA_PATH" || common::err "Could not change directory: $ENROOT_DATA_PATH"
  if [ -z "$1" ]; then
    ls -1
    return
  fi
  common::checkcmd mountpoint awk lsns ps column
  shopt -s nullglob
  for name in */; do
    name=${name%/}
    names[$name]=$(stat -c %d:%i "$name") processes[$name]=''
  done
  shopt -u nullglob
  for pid in $(lsns -n -r -t mnt -o pid); do
    [ -e "/proc/$pid/root$lock_file" ] || continue
    at=$(stat -L -c %d:%i "/proc/$pid/root/" 2> /dev/null) || continue
    for name in "${!names[@]}"; do [ "${names[$name]}" != "$at" ] || processes[$name]+="$pid "; done
  done
  {
    printf 'NAME\tPID\tCOMM\tSTATE\tSTARTED\tTIME\tMNTNS\tUSERNS\tCOMMAND\n'
    for name in $(printf '%s\n' "${!names[@]}" | sort); do
      [ -n "${processes[$name]}" ] || echo "$name"
      for pid in ${processes[$name]}; do
        # The command is the last column, as it may have spaces.
        ps -p "$pid" --no-headers -o pid:1,stat:1,stime:1,etime:1,mntns:1,userns:1,command:1 |
          while read -r pid state started elapsed mounts users command; do
            printf '%s\t' "$name" "$pid" "$(< "/proc/$pid/comm")" "$state" "$started" "$elapsed" "$mounts" "$users"
            echo "$command"
          done
      done
    done
  } | column -t -s $'\t'
}

runtime::check_lines() {  # text regular_expression
  local line
  [ -z "$1" ] || while IFS= read -r line; do [[ $line =~ $2 ]] || common::err "Invalid argument: $line"; done <<< "$1"
}
mount_form='^[^[:space:]]+(:[^[:space:]]+)*$'
variable_form='^[[:alpha:]_][[:alnum:]_]*(=|$)'

# Variables given as KEY alone take the host's value.
runtime::given_environment() {  # lines
  local line
  [ -z "$1" ] || while IFS= read -r line; do
    if [[ $line == *=* ]]; then echo "$line"; else echo "$line=${!line-}"; fi
  done <<< "$1"
}

runtime::start() {  # name|image rc config mounts environment [COMMAND] [ARG...]
  local rootfs=$1 rc=$2 config=$3 options=()
  common::checkcmd mountpoint awk grep sed flock
  [ -n "$rootfs" ] || common::err "Invalid argument"
  if [ -f "$rootfs" ] && unsquashfs -s "$rootfs" > /dev/null 2>&1; then
    rootfs=$(common::realpath "$rootfs")
  else
    rootfs=$(runtime::existing_rootfs "$rootfs")
  fi
  runtime::check_lines "$4" "$mount_form"
  runtime::check_lines "$5" "$variable_form"
  if [ -n "$rc" ]; then
    rc=$(common::realpath "$rc")
    [ -f "$rc" ] || common::err "No such file or directory: $rc"
  fi
  if [ -n "$config" ]; then
    config=$(common::realpath "$config")
    [ -f "$config" ] || common::err "No such file or directory: $config"
    bash -n "$config" || common::err "Invalid argument: $config"
  fi
  # Root stays root in a container only where that is allowed.
  [[ -n ${ENROOT_ALLOW_SUPERUSER-} && $EUID -eq 0 ]] || options+=(--user)
  [ -z "${ENROOT_REMAP_ROOT-}" ] || options+=(--remap-root)
  # shellcheck disable=SC2016  # the inner shell expands them
  exec enroot-nsenter "${options[@]}" --mount bash --norc -euo pipefail -O inherit_errexit \
    -c 'source "$ENROOT_LIBRARY_PATH/runtime.sh"; runtime::run_container "$@"' enroot \
    "$rootfs" "$rc" "$config" "${@:4}"
}

# Inside the namespaces: prepares the root, runs the hooks, and becomes the container's command.
runtime::run_container() {  # rootfs rc config mounts environment [COMMAND] [ARG...]
  local rootfs=$1 rc=$2 config=$3 mounts=$4 environment=$5 options=()
  shift 5
  printf 'tmpfs %s tmpfs x-create=dir,mode=700,slave\n' "$ENROOT_RUNTIME_PATH" | enroot-mount -
  if [ -f "$rootfs" ]; then
    runtime::mount_image "$rootfs" "$ENROOT_RUNTIME_PATH/overlay"
    rootfs=$ENROOT_RUNTIME_PATH/overlay
  fi
  printf '%s %s none bind,nosuid,nodev,slave\n' "$rootfs" "$rootfs" | enroot-mount -
  (
    export ENROOT_PID=$$ ENROOT_ROOTFS=$rootfs ENROOT_ENVIRON=$environ_file ENROOT_MOUNTS=$mount_file
    flock -w 30 "$lock" || common::err "Could not acquire rootfs lock"
    # shellcheck source=/dev/null
    [ -z "$config" ] || source "$config"
    runtime::write_environment "$environment" > "$environ_file"
    runtime::format_environment
    runtime::system_mounts > "$mount_file"
    enroot-mount --root "$rootfs" --pass -1 "$mount_file"
    runtime::run_hooks
    {
      ! declare -F mounts > /dev/null || mounts
      [ -z "$mounts" ] || tr : ' ' <<< "$mounts"
    } >> "$mount_file"
    enroot-mount --root "$rootfs" "$mount_file"
    if [ -n "$rc" ]; then
      cp -Lp "$rc" "$rc_file"
    elif declare -F rc > /dev/null; then
      declare -f rc | sed '1,2d;$d' > "$rc_file"
    fi
  ) {lock}> "$rootfs$lock_file"
  [ -n "${ENROOT_ROOTFS_WRITABLE-}" ] || printf 'none %s none remount,bind,nosuid,nodev,ro\n' "$rootfs" | enroot-mount -
  printf '%s %s none bind,nosuid,nodev,noexec,ro,private\n' "$rootfs$lock_file" "$rootfs$lock_file" | enroot-mount -
  [ -z "${ENROOT_LOGIN_SHELL-}" ] || options+=(--login)
  [ ! -f "$rc_file" ] || options+=(--rcfile "$rc_file")
  exec enroot-switchroot "${options[@]}" --envfile "$environ_file" "$rootfs" "$@"
}

# Mounts an image, with memory over it for what the container writes.
runtime::mount_image() {  # image directory
  local code=0
  common::checkcmd squashfuse mountpoint
  [ -n "${ENROOT_NATIVE_OVERLAYFS-}" ] || common::checkcmd fuse-overlayfs
  mkdir -p "$2"/{lower,upper,work}
  # What serves the mounts is a process group whose leader stops. Once this process, the container, has ended, nobody is
  # left who could wake it up: the kernel hangs up on such a group.
  set -m
  runtime::serve_image "$@" > /dev/null 2> "$ENROOT_RUNTIME_PATH/fuse" &
  wait "$!" > /dev/null 2>&1 || code=$?
  set +m
  if ((code != 128 + $(kill -l STOP))); then
    common::log WARN "$(< "$ENROOT_RUNTIME_PATH/fuse")"
    common::err "Failed to mount: $1"
  fi
  disown "$!" 2> /dev/null
}

runtime::serve_image() {  # image directory
  trap 'kill -KILL 0 2> /dev/null' EXIT
  squashfuse -f -o "uid=$EUID,gid=$(stat -c %g "/proc/$BASHPID")" "$1" "$2/lower" &
  runtime::await_mount "$!" "$2/lower"
  if [ -n "${ENROOT_NATIVE_OVERLAYFS-}" ]; then
    printf 'overlay %s overlay lowerdir=%s,upperdir=%s,workdir=%s,xino=off\n' "$2" "$2/lower" "$2/upper" "$2/work" |
      enroot-mount -
  else
    FUSE_OVERLAYFS_DISABLE_OVL_WHITEOUT=y fuse-overlayfs -f -o "lowerdir=$2/lower,upperdir=$2/upper,workdir=$2/work" \
      "$2" &
    runtime::await_mount "$!" "$2"
  fi
  kill -STOP "$BASHPID"
}

runtime::await_mount() {  # pid directory
  local looks
  for ((looks = 0; looks < 100; looks++)); do
    mountpoint -q "$2" && return
    kill -0 "$1" 2> /dev/null || break
    sleep .001
  done
  exit 1
}

# Files that the host and then the user has for all containers.
runtime::parts() {  # directory suffix
  local file
  for file in "$ENROOT_SYSCONF_PATH/$1"/*"$2" "$ENROOT_CONFIG_PATH/$1"/*"$2"; do [ ! -f "$file" ] || echo "$file"; done
}

runtime::write_environment() {  # given
  local file
  common::envsubst "$ENROOT_ROOTFS/etc/environment"
  for file in $(runtime::parts environ.d .env); do common::envsubst "$file"; done
  ! declare -F environ > /dev/null || environ
  runtime::given_environment "$1"
}

# Leaves only variables, without quotes around their values and without Enroot's own.
runtime::format_environment() {
  sed -i -E -e 's/^[[:space:]]+//' -e '/^[[:alpha:]_][[:alnum:]_]*=/!d' -e '/^ENROOT_/d' \
    -e "s/^([^=]+)=[\"'](.*)[\"'][[:space:]]*\$/\1=\2/" "$environ_file"
}

runtime::system_mounts() {
  local file
  common::envsubst "$ENROOT_ROOTFS/etc/fstab"
  for file in $(runtime::parts mounts.d .fstab); do common::envsubst "$file"; done
}

# Hooks write their mounts into a file of their own, as the system's are done already.
runtime::run_hooks() {
  local file
  mv "$mount_file" "$mount_file~"
  : > "$mount_file"
  for file in $(runtime::parts hooks.d .sh); do
    [ ! -x "$file" ] || "$file" > /dev/null || common::err "$file exited with return code $?"
  done
  ! declare -F hooks > /dev/null || hooks
  enroot-mount --root "$ENROOT_ROOTFS" "$mount_file"
  mv "$mount_file~" "$mount_file"
  runtime::format_environment
}
