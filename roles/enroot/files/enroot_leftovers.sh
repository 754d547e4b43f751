#!/bin/sh
# Remove the containers pyxis_<job>.<step> that steps of an earlier boot have left in Enroot's data directory.
#
#   aside DIRECTORY    rename them, so that a job that is requeued to this node can use their names
#   remove DIRECTORY   remove what has been renamed, which takes minutes
#
# Each is done as the user to whom the directory of containers belongs, so a link of theirs leads to nothing that they
# could not remove themselves.
set -eu
action=$1 data=$2

# While Slurm runs, steps may be alive. pgrep ends with 1 if it finds no such process, and otherwise if it cannot tell.
if [ "$action" = aside ]; then
  code=0
  running=$(pgrep -l -x 'slurmd|slurmstepd') || code=$?
  if [ "$code" != 1 ]; then
    echo "nothing is removed, because Slurm runs: $(echo "$running" | head -n 1)"
    exit 0
  fi
fi
boot=$(cut -c -8 /proc/sys/kernel/random/boot_id)

# Whether a directory is that of a step, which is a job and a number.
step='
  step() {
    case $1 in *[!0-9.]* | *.*.* | .* | *.) return 1 ;; *.*) [ -d "$2" ] && [ ! -L "$2" ] ;; *) return 1 ;; esac
  }'
aside='
  for name in pyxis_*; do
    step "${name#pyxis_}" "$name" || continue
    mv -nT "$name" ".$name.$1" && echo "renamed $2/$name"
  done'
remove='
  for name in .pyxis_*.????????; do
    id=${name#.pyxis_}
    step "${id%.????????}" "$name" || continue
    rm -rf --one-file-system "$name" 2> /dev/null || {
      find "$name" -xdev -type d ! -perm -700 -exec chmod u+rwx {} \;
      rm -rf --one-file-system "$name"
    } || failed=1
    [ -e "$name" ] || echo "removed $2/$name"
  done
  exit "${failed-0}"'

failed=0
for home in "$data"/user-*; do
  owner=$(stat --format='%u:%g:%F' "$home" 2> /dev/null) || continue
  uid=${owner%%:*} gid=${owner#*:} kind=${owner##*:}
  # Enroot uses no other, see enroot.conf.
  [ "$kind" = directory ] && [ "$home" = "$data/user-$uid" ] || continue
  case $action in aside) script=$aside ;; *) script=$remove ;; esac
  (cd "$home" && setpriv --reuid="$uid" --regid="${gid%%:*}" --clear-groups --no-new-privs \
    /bin/sh -c "$step$script" sh "$boot" "$home") || failed=1
done
# What could not be renamed keeps nothing else from being removed.
[ "$action" = aside ] || exit "$failed"
