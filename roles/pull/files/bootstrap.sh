#!/usr/bin/env bash
# Brings this node up to date with a bundle of pcluster.postboot. ParallelCluster runs it as a custom action, as root
# and without a terminal:
#
#   OnNodeConfigured:
#     {Script: s3://.../bootstrap.sh, Args: [--bundle, s3://.../pcluster-postboot.tar.gz, --sha256, ...]}
#
# On SageMaker HyperPod the hook that `publish` writes runs it (roles/publish/files/on_init_complete.sh).
#
# --bundle URL     the bundle, at s3://, https://, http:// or a path of this node. `publish` prints it, and the next
# --sha256 HEX     what it has to be
# --mode MODE      auto: by what the node is; gpu: and a compute node has to have a GPU; cpu: as if it had none; none,
#                  or empty: nothing is done
# --budget SECONDS how long all of it may take (default: what is left of the time that ParallelCluster gives this node,
#                  less a margin; on HyperPod, which documents no such time, an hour)
# --python PATH    with which Ansible is to run (default: the newest of the system's own that fits, then
#                  ParallelCluster's)
# --defer yes|no   whether what can wait runs after the boot, by pcluster-postboot.service (default: yes)
# --installed      instead of a bundle: all of it, with what was installed last and without a budget; with --check
#                  nothing is changed
# --bake           instead of site: what an image needs, while the image is made; with --installed --check: whether the
#                  image has all of it
#
# What it does is in /var/log/pcluster-postboot/pull.log. Why it failed is the last line of standard output, and the
# only one of standard error. PCLUSTER_POSTBOOT_ROOT is internal: tests put it before every path.
set -Eeuo pipefail
shopt -s nullglob
umask 022
root=${PCLUSTER_POSTBOOT_ROOT:-}
export PATH=${root:+$root/bin:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
for name in "${!PYTHON@}" "${!ANSIBLE_@}" "${!UV_@}" VIRTUAL_ENV; do unset "$name"; done
opt=$root/opt/pcluster-postboot
log=$root/var/log/pcluster-postboot/pull.log
unit=pcluster-postboot.service
stage=
stopped=no
deadline='' installed=no bake=no
exec 4>&2

now() { # in hundredths of a second; the clock may still be set during a boot
  local up
  read -r up _ < /proc/uptime
  echo "${up/./}"
}
began=$(now)
elapsed() { echo $((($(now) - began) / 100)); }
tenths() { awk -v hundredths=$(($(now) - began)) 'BEGIN { printf "%.1f s", hundredths / 100 }'; }

note() { TZ=UTC printf '%(%Y-%m-%dT%H:%M:%SZ)T bootstrap.sh[%d]: %s\n' -1 $$ "$*" >&3; }
say() {
  note "$*"
  echo "pcluster-postboot: $*"
}
die() {
  trap - ERR
  if [ "$installed$bake" = nono ]; then tell failed "$*"; fi
  if ! note "failed: $*" 2> /dev/null; then set -- "$* ($log cannot be written: $(room /var/log))"; fi
  set -- "pcluster-postboot: $*; see $log"
  echo "$1" >&4
  # ParallelCluster keeps standard error out of its logs, and on a head node out of everything. Other logs have both.
  if [ ! /proc/self/fd/1 -ef /proc/self/fd/4 ]; then echo "$1"; fi
  if [ "$stopped" = yes ]; then systemctl start --no-block "$unit"; fi # what it had to do, nothing has done
  exit 1
}
# For whoever watches the cluster boot (module_utils/_boot/record.py). Shared storage that hangs costs five seconds.
tell() { # STAGE [WHY]
  local node why=${2-}
  node=$(head -n 1 "$root/etc/parallelcluster/slurm_plugin/slurm_nodename" 2> /dev/null) || node=$(hostname -s)
  why=${why//$'\n'/ }
  # shellcheck disable=SC2016
  timeout --kill-after=1 5 bash -c '
    [ ! -d "$1" ] || { mkdir -p "$1/pcluster-postboot/boots" && cd "$1/pcluster-postboot/boots" &&
      printf "%s\n" "node $2" "instance $(cat "$3" 2> /dev/null)" "stage $4" "since $(date +%s)" \
        "deadline $5" "why ${6:0:500}" > ".$2" && chmod 0644 ".$2" && mv -T ".$2" "$2"; }
  ' tell "$root/opt/slurm" "$node" "$root/var/lib/cloud/data/instance-id" "$1" "$deadline" "$why" 2>&3 ||
    note "how far the boot is cannot be told to others"
}
last_line() { sed '/^[[:space:]]*$/d' <<< "$1" | tail -n 1; }
room() { echo "$(df --output=avail --block-size=1M "${1:-$opt}" | tail -n 1 | tr -d ' ') MB are free in ${1:-$opt}"; }
trap 'rm -rf -- ${stage:+"$stage"}' EXIT
# A command substitution that fails makes its command fail, which is told once.
trap 'if [ "$BASH_SUBSHELL" = 0 ]; then die "line $LINENO ended with $?: $BASH_COMMAND"; fi' ERR

# What is wanted

bundle='' sha256='' mode=auto budget='' python='' defer=yes installed=no check=no bake=no gone=''
arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
      --bundle | --sha256 | --mode | --budget | --python | --defer)
        [ $# -gt 1 ] || die "$1 has no value"
        printf -v "${1#--}" %s "$2"
        shift
        ;;
      --installed | --check | --bake) printf -v "${1#--}" yes ;;
      # Arguments of earlier versions still stand in clusters' configurations, where a failure would cost nodes.
      --hold | --release)
        gone=$1
        case $1=${2-} in --hold=yes | --hold=no) shift ;; esac
        ;;
      *)
        die "argument $1 is unknown; there are --bundle --sha256 --mode --budget --python --defer --installed" \
          "--check --bake"
        ;;
    esac
    shift
  done
  case ${mode:=none} in auto | gpu | cpu | none) ;; *) die "--mode is $mode; needed: auto, gpu, cpu or none" ;; esac
  case $defer in yes | no) ;; *) die "--defer is $defer; needed: yes or no" ;; esac
  [[ $budget =~ ^[0-9]*$ ]] || die "--budget is $budget; needed: a number of seconds"
  budget=${budget:+$((10#$budget))}
  [ "$check$installed" != yesno ] || die "--check needs --installed"
  [ "$bake$installed$check" != yesyesno ] || die "--bake with --installed needs --check"
  if [ "$gone" ]; then
    say "$gone does nothing any more: ParallelCluster 3.13 to 3.15 terminate booting nodes that a reservation holds;" \
      "take it out"
  fi
  if [ "$gone$bundle$installed" = --releaseno ]; then exit 0; fi # by the service's unit of an earlier version
  if [ "$mode" = none ] || [ "$installed" = yes ]; then return; fi
  [[ $sha256 =~ ^[0-9a-f]{64}$ ]] ||
    die "--sha256 is '$sha256'; needed: the 64 hexadecimal digits that publish has printed"
  case $bundle in
    s3://* | https://* | http://* | /*) ;;
    *) die "--bundle is '$bundle'; needed: a URL that begins with s3://, https:// or http://, or an absolute path" ;;
  esac
}

# The time. docs/pull.md has the numbers

cfnconfig() { # NAME: what ParallelCluster has noted of this node
  local file=$root/etc/parallelcluster/cfnconfig
  if [ -r "$file" ]; then sed -n "s/^cfn_$1=[\"']*\([A-Za-z0-9-]*\).*/\1/p" "$file"; fi
}

hyperpod=$root/opt/ml/config/resource_config.json # HyperPod has written it before any hook

launched_ago() { # how many seconds ago EC2 launched this instance, or nothing where nobody tells
  local imds=http://169.254.169.254/latest ask token told
  ask=(curl --fail --silent --noproxy '*' --connect-timeout 1 --max-time 2)
  token=$("${ask[@]}" --request PUT --header 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$imds/api/token") || return 0
  told=$("${ask[@]}" --header "X-aws-ec2-metadata-token: $token" "$imds/dynamic/instance-identity/document") || return 0
  told=$(sed -n 's/.*"pendingTime" *: *"\([0-9TZ:.-]\{1,\}\)".*/\1/p' <<< "$told")
  if [ "$told" ] && told=$(date --date "$told" +%s); then echo $(($(date +%s) - told)); fi
}

# ParallelCluster counts from the launch, and a boot may begin minutes later. It also waits for what follows
# this script.
time_left() {
  local kind key=ComputeNodeBootstrapTimeout config=shared timeout='' up since margin=180
  if [ -e "$hyperpod" ]; then
    echo 3600
    return
  fi
  kind=$(cfnconfig node_type)
  if [ "$kind" = HeadNode ]; then key=HeadNodeBootstrapTimeout; fi
  if [ "$kind" = LoginNode ]; then config=shared_login_nodes; fi
  config=$root/opt/parallelcluster/$config/cluster-config.yaml
  if [ -r "$config" ]; then timeout=$(sed -n "/^[^#]*\b${key}[\"']*: *\([0-9]\{1,\}\).*/{s//\1/p;q}" "$config"); fi
  timeout=${timeout:-2100}
  if [ "$kind" = LoginNode ] && [ "$timeout" -gt 600 ]; then
    timeout=600 # the launch hook of their Auto Scaling group
  fi
  up=$(ps -o etimes= -p 1)
  since=$(launched_ago)
  if [ "${since:--1}" -lt "$up" ] || [ "$since" -gt "$timeout" ]; then
    since=$up
    margin=300
  fi
  if [ "$since" -gt "$timeout" ]; then since=0; fi # it is no boot
  if [ "$kind" = HeadNode ]; then timeout=$((timeout / 2)); fi # its static compute nodes boot in what is left
  timeout=$((timeout - since - margin))
  echo $((timeout > 60 ? timeout : 60))
}

# The bundle

download() { # URL FILE
  local attempt=0 told='' seconds command pause=2 patience
  # S3, or the way to it, may fail for minutes. What follows the download needs the rest of the budget.
  patience=$(((budget - $(elapsed)) / 4))
  patience=$(($(elapsed) + (patience < 300 ? patience : 300)))
  while true; do
    seconds=$((budget - $(elapsed)))
    if [ "$seconds" -le 0 ]; then break; fi
    attempt=$((attempt + 1))
    case $1 in
      s3://*) command=(aws s3 cp --only-show-errors --cli-connect-timeout 10 --cli-read-timeout 60 "$1" "$2") ;;
      *)
        command=(curl --fail --silent --show-error --location --globoff --connect-timeout 10 --speed-limit 1 \
          --speed-time 60)
        command+=(--output "$2" "$1")
        ;;
    esac
    # It ends with this script, and if it does not, the next run need not wait for it.
    if told=$(timeout --foreground --kill-after=5 "$seconds" "${command[@]}" 2>&1 4>&- 9>&-); then return; fi
    told=$(last_line "$told")
    note "download, attempt $attempt: ${told:-not within $seconds s}"
    if [ "$attempt" -ge 3 ]; then
      case $told in # what does not get better by itself
        *'(403)'* | *'(404)'* | *'(AccessDenied)'* | *'(NoSuch'* | *'error: 40'[34]* | *'No space left'* | \
          *'curl: (23)'* | *'failed to run command'*) break ;;
      esac
      if [ "$(elapsed)" -ge "$patience" ]; then break; fi
    fi
    sleep $((pause / 2 + RANDOM % pause))
    pause=$((pause < 32 ? pause * 2 : pause))
  done
  if [ $((budget - $(elapsed))) -le 0 ]; then
    die "${1%%\?*} could not be read within the budget of $budget s; $(du --block-size=1K "$stage" | tail -n 1 |
      cut -f 1) KB were there"
  fi
  die "${1%%\?*} cannot be read: ${told:-no message} ($(room))"
}

bring() { # leaves the unpacked bundle in $home
  local archive=$stage/bundle.tar.gz found told
  case $bundle in
    /*)
      [ -f "$bundle" ] || die "--bundle is $bundle, which is not there"
      # A copy of our own: the file may be one that others can change after it was verified.
      told=$(cp "$bundle" "$archive" 2>&1) || die "--bundle cannot be read: $(last_line "$told") ($(room))"
      ;;
    *) download "$bundle" "$archive" ;;
  esac
  found=$(sha256sum < "$archive")
  found=${found%% *}
  [ "$found" = "$sha256" ] ||
    die "${bundle%%\?*} is not what --sha256 says: its $(stat --format=%s "$archive") bytes have the sha256 $found;" \
      "needed: $sha256"
  mkdir -m 0700 "$stage/tree" # variables may hold secrets
  told=$(tar --extract --gzip --no-same-owner --directory "$stage/tree" --file "$archive" 2>&1) ||
    die "the bundle cannot be unpacked: $(last_line "$told") ($(room))"
  read_bundle "$stage/tree"
  home=$opt/$version-${sha256:0:12}
  rm -rf "$home"
  mv -T "$stage/tree" "$home"
  say "the bundle ${home##*/} is here after $(tenths)"
}

read_bundle() { # DIRECTORY: sets version, pythons and architectures
  local told format program='import json, sys
b = json.load(open(sys.argv[1]))
print(b["format"], b["version"]); print(*b["pythons"]); print(*b["architectures"])'
  # Without -S a broken module of the system's may print lines of its own.
  told=$(python3 -I -S -c "$program" "$1/bundle.json" 2>&1) || die "bundle.json cannot be read: $(last_line "$told")"
  { read -r format version && read -r pythons && read -r architectures; } <<< "$told"
  [ "$format" = 1 ] || die "the bundle has format $format; needed: 1, or the bootstrap.sh that was published with it"
  case " $architectures " in
    *" $(uname -m) "*) ;;
    *) die "the bundle is for $architectures; needed: one for $(uname -m)" ;;
  esac
}

# Python

fits() { # PATH: whether the bundle has wheels for it; what it is goes into $seen
  local is
  is=$("$1" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null) || is=none
  seen+="${seen:+, }$1 is $is"
  case " $pythons " in *" $is "*) ;; *) return 1 ;; esac
}

look_for_python() {
  local one parallelcluster=$root/opt/parallelcluster/pyenv/versions
  seen=
  for one in $(type -P python3.14 python3.13 python3.12 python3.11 python3) "$parallelcluster"/*/bin/python3 \
    "$parallelcluster"/*/envs/*/bin/python; do
    if fits "$one"; then
      python=$one
      return
    fi
  done
  return 1
}

find_python() {
  local told apt
  seen=
  if [ "$python" ]; then
    if ! fits "$python"; then die "--python: $seen; needed: one of $pythons"; fi
    return
  fi
  if look_for_python; then return; fi
  # HyperPod's AMI is an Ubuntu 22.04, whose own is older, and which has this one, too.
  if [ -e "$hyperpod" ] && type -P apt-get > /dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt=(apt-get --option DPkg::Lock::Timeout=300)
    told=$({ "${apt[@]}" update && "${apt[@]}" install --yes --no-install-recommends python3.11; } 2>&1) ||
      die "no Python fits ($seen), and apt-get brings no python3.11: $(last_line "$told")"
    say "apt-get has brought python3.11 after $(tenths)"
    if look_for_python; then return; fi
  fi
  die "no Python fits (${seen:-none was found}); needed: one of $pythons, in the image or named by --python"
}

make_venv() {
  local told uv wheel install
  find_python
  rm -f "$home/.complete"
  rm -rf "$home/venv"
  wheel=("$home"/wheelhouse/uv-*"$(uname -m)".whl)
  if [ ${#wheel[@]} -gt 0 ]; then
    told=$("$python" -I -m zipfile -e "${wheel[0]}" "$stage/uv" 2>&1) ||
      die "uv cannot be unpacked: $(last_line "$told") ($(room))"
    uv=("$stage"/uv/uv-*.data/scripts/uv)
    chmod 0755 "${uv[0]}"
    export UV_CACHE_DIR=$stage/cache UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never
    told=$("${uv[0]}" venv --python "$python" "$home/venv" 2>&1) ||
      die "$python makes no environment: $(last_line "$told") ($(room))"
    install=("${uv[0]}" pip install --offline --python "$home/venv/bin/python")
  else
    told=$("$python" -I -m venv "$home/venv" 2>&1) || die "$python makes no environment: $(last_line "$told") ($(room))"
    install=("$home/venv/bin/python" -I -m pip install --disable-pip-version-check --no-cache-dir)
  fi
  told=$("${install[@]}" --no-index --find-links "$home/wheelhouse" \
    --require-hashes --requirement "$home/requirements.txt" 2>&1) ||
    die "Ansible cannot be installed for $python: $(last_line "$told") ($(room))"
  sync --file-system "$home" # what a crash may leave is whole, or has no .complete
  touch "$home/.complete"
  note "an environment of $python is there after $(tenths)"
}

# What is installed

release() { # what an earlier version's --hold may have left
  local file=$root/var/lib/pcluster-postboot/reservation told
  if [ ! -e "$file" ]; then return; fi
  told=$(timeout 30 "$root/opt/slurm/bin/scontrol" delete "ReservationName=$(< "$file")" 2>&1) ||
    note "the reservation $(< "$file") ends by itself, an hour after it was made: $(last_line "$told")"
  rm -f "$file"
}

settle() { # makes $home the current one; of the others, the two that were used last stay, and none that is not whole
  local old
  touch "$home/.complete"
  echo "$mode" > "$stage/mode"
  mv -T "$stage/mode" "$opt/mode"
  ln -s "${home##*/}" "$stage/current"
  mv -T "$stage/current" "$opt/current"
  # Whatever the clock says, this one stays.
  find "$opt" -mindepth 2 -maxdepth 2 -name .complete ! -path "$home/*" -printf '%T@ %h\n' | sort -rn | tail -n +3 |
    cut -d ' ' -f 2 |
    while read -r old; do
      note "$old is removed"
      rm -rf "$old"
    done
  find "$opt" -mindepth 1 -maxdepth 1 -regextype posix-extended -regex '.*-[0-9a-f]{12}' ! -exec test \
    -e '{}/.complete' \; -exec rm -rf {} +
}

run() { # boot, later or check, and its arguments
  local what=$1
  shift
  cd "$home"
  PYTHONPATH=$home exec "$home/venv/bin/python" "$home/ansible_collections/pcluster/postboot/roles/pull/files/pull.py" \
    "$what" --home "$home" --mode "$mode" "$@" 2>&4 3>&- 4>&-
}

stop_service() { # what it does is done by this run, or goes on after it
  local state
  state=$(systemctl show --property=ActiveState --value "$unit")
  case $state in inactive | failed) return ;; esac
  stopped=yes
  systemctl stop "$unit"
}

surroundings() { # what only login shells know
  local region
  if [ -r "$root/etc/profile.d/proxy.sh" ]; then # ParallelCluster's own
    set +u
    # shellcheck source=/dev/null
    . "$root/etc/profile.d/proxy.sh" || note "$root/etc/profile.d/proxy.sh ended with $?"
    set -u
  fi
  # Without a region the AWS CLI asks an endpoint of us-east-1, to which there may be no way.
  if [ -z "${AWS_REGION:-}${AWS_DEFAULT_REGION:-}" ]; then
    region=$(cfnconfig region)
    if [ ! "$region" ] && [ -r "$hyperpod" ]; then
      region=$(sed -n 's/.*"ClusterArn" *: *"arn:[a-z-]*:sagemaker:\([a-z0-9-]*\):.*/\1/p' "$hyperpod")
    fi
    if [ "$region" ]; then export AWS_DEFAULT_REGION=$region; fi
  fi
}

main() {
  local there
  [ "$EUID" = 0 ] || [ -n "$root" ] || { echo "pcluster-postboot: bootstrap.sh needs root" >&4 && exit 1; }
  mkdir -p "${log%/*}" "$root/run/pcluster-postboot"
  if [ -e "$log" ] && [ "$(stat --format=%s "$log")" -gt 10000000 ]; then mv -f "$log" "$log.1"; fi
  exec 3>> "$log" 2>&3
  chmod 0640 "$log"
  arguments "$@"
  home=$opt/current
  if [ "$mode$installed" = noneno ]; then
    say "--mode is none: nothing is done"
    return
  fi
  surroundings
  mkdir -p "$opt"
  if [ "$bake" = yes ]; then budget=${budget:-3600}; fi # ParallelCluster does not wait for an image
  budget=${budget:-$(time_left)}
  if [ "$installed$bake" = nono ]; then
    deadline=$(($(date +%s) + budget))
    tell bundle
  fi
  if [ "$installed" = no ]; then stop_service; fi
  umask 077 # whoever could read the file could lock it
  exec 9>> "$root/run/pcluster-postboot/bootstrap.lock"
  umask 022
  flock --timeout "$budget" 9 || die "another bootstrap.sh is at work, and has not ended within $budget s"
  if [ "$installed" = no ]; then stop_service; fi # the other one may have started it, with another bundle
  rm -rf "$opt"/.incoming.*
  stage=$(mktemp --directory "$opt/.incoming.XXXXXX") || die "nothing can be written to $opt ($(room))"
  if [ "$installed" = yes ]; then
    home=$opt/$(readlink "$opt/current") ||
      die "nothing is installed in $opt; needed: a first run with --bundle and --sha256"
    mode=$(< "$opt/mode")
  else
    there=("$opt"/*-"${sha256:0:12}"/.complete)
    if [ ${#there[@]} -gt 0 ]; then home=${there[0]%/*}; else bring; fi
  fi
  read_bundle "$home"
  if [ ! -e "$home/.complete" ] || ! "$home/venv/bin/python" -I -c 'import ansible'; then make_venv; fi
  if [ "$installed" = no ]; then
    settle
    release
  fi
  rm -rf "$stage"
  if [ "$bake$check" = yesyes ]; then run baked; fi
  if [ "$bake" = yes ]; then run bake; fi
  if [ "$check" = yes ]; then run check; fi
  # It waits for slurmd, and another run may come meanwhile.
  if [ "$installed" = yes ]; then run later 9>&-; fi
  run boot --stopped "$stopped" --defer "$defer" --budget "$budget" --elapsed "$(($(now) - began))"
}

main "$@"
