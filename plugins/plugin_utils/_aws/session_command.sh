# Starts a script on this node as a unit of its own, once, and tells how far the script is. session_command.py sends
# these lines over a session, to `sh` as root, with the call of main. A session that dies takes nothing with it: unit and
# output are the node's. PCLUSTER_POSTBOOT_ROOT is internal: tests put it before every path.
# shellcheck shell=sh
root=${PCLUSTER_POSTBOOT_ROOT:-}
export PATH="${root:+$root/bin:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" LC_ALL=C.UTF-8
umask 077

main() { # begin UNIT RUN SECONDS DESCRIPTION SCRIPT, or look UNIT RUN
  unit=$2
  run=$3
  commands=$root/run/pcluster-postboot/commands # root's, and empty after a boot
  here=$commands/$unit
  mkdir -p "$commands" || exit 1
  exec 9> "$commands/lock" || exit 1
  flock 9 || exit 1
  if [ "$1" = begin ] && ! known; then
    if ! works; then
      start "$4" "$5" "$6" || exit 1
    elif [ -e "$here/runs" ] && [ ! -e "$here/code" ]; then # for another run, which was interrupted
      echo "$run" >> "$here/runs"
    else
      echo "$unit.service has not ended yet"
      exit 1
    fi
  fi
  tell
}

known() { # whether this run has begun here
  grep -qxF "$run" "$here/runs" 2> /dev/null
}

works() {
  systemctl is-active --quiet "$unit.service"
}

start() { # SECONDS DESCRIPTION SCRIPT
  rm -rf "$here" && mkdir "$here" && printf '%s\n' "$3" > "$here/script" || return 1
  # The exit status is there whole, or not at all; timeout has 124 and 137 for what took too long.
  # shellcheck disable=SC2016
  systemd-run --quiet --collect --unit="$unit" --description="$2" sh -c '
    timeout --kill-after=60 "$2" sh "$1/script" > "$1/output" 2>&1 < /dev/null
    echo $? > "$1/code.new" && mv "$1/code.new" "$1/code"' sh "$here" "$1" && echo "$run" > "$here/runs"
}

tell() { # one line: what of it is missing, the controller notices
  working=$(if works; then echo yes; fi) # before the exit status is looked for, which is there before the unit ends
  code=-
  output=-
  if ! known; then
    state=unknown
  elif [ -e "$here/code" ]; then
    state=ended
    code=$(cat "$here/code")
    output=$(head -c 65536 "$here/output" | gzip -9 | base64 -w 0)
  elif [ "$working" ]; then
    state=running
  else
    state=lost
  fi
  echo "pcluster-postboot-command 1 $state $code $output ."
}
