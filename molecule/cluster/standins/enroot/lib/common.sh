# shellcheck shell=bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: what the commands share, and what hooks use: log, err, checkcmd, realpath, getpwent and getgrent have
# upstream's names.
[ -v common_loaded ] && return
common_loaded=1

common::log() {  # INFO|WARN|ERROR message
  [ -z "${2-}" ] || printf '[%s] %b\n' "$1" "$2" >&2
}

common::err() {
  common::log ERROR "$1"
  exit 1
}

common::checkcmd() {
  local name
  for name; do command -v "$name" > /dev/null || common::err "Command not found: $name"; done
}

# The last component need not exist.
common::realpath() {
  readlink -f "$1" 2> /dev/null || common::err "No such file or directory: $1"
}

# The user, and his group, whom the user namespace maps.
common::getpwent() {
  local outside _
  read -r _ outside _ < /proc/self/uid_map
  getent passwd "$outside"
}

common::getgrent() {
  local outside _
  read -r _ outside _ < /proc/self/gid_map
  getent group "$outside"
}

common::mktmpdir() {
  (umask 077 && mktemp -d -p "$ENROOT_TEMP_PATH" "$1.XXXXXXXXXX")
}

# Removes a tree even where it has directories that its owner may not write. Where chmod fails, the second rm says why.
common::rmall() {
  rm -rf --one-file-system "$1" 2> /dev/null || { chmod -f -R u+rwX "$1" || true; rm -rf --one-file-system "$1"; }
}

# A container's files stay readable for the user who owns them all. A link that leads nowhere fails, and costs nothing.
common::fixperms() {
  chmod -f -R u+rX "$1" || true
  find "$1" -type d ! -perm -u=w -exec chmod -f u+w {} + || true
}

# Runs a function for each item, so many at once; fails with the number of items for which it failed.
common::parallel() {  # limit function [item...]
  local limit=$1 function=$2 running=0 failed=0 item
  shift 2
  for item; do
    if (( limit > 0 && running == limit )); then
      wait -n || failed=$((failed + 1))
      running=$((running - 1))
    fi
    "$function" "$item" &
    running=$((running + 1))
  done
  for ((; running > 0; running--)); do wait -n || failed=$((failed + 1)); done
  return "$failed"
}

# Prints the answer of curl's last argument, which is a URL.
common::curl() {
  local body code=0 failed=0 reasons
  body=$(mktemp -p "$ENROOT_TEMP_PATH" enroot.XXXXXXXXXX)
  code=$(curl -o "$body" -w '%{http_code}' "$@") || failed=$?
  cat "$body"
  rm -f "$body"
  (( failed == 0 )) || return "$failed"
  [[ $code -lt 400 || " ${CURL_IGNORE-} " == *" $code "* ]] && return
  reasons=([400]='Bad Request' [401]=Unauthorized [402]='Payment Required' [403]=Forbidden [404]='Not Found' \
    [405]='Method Not Allowed'
    [406]='Not Acceptable' [407]='Proxy Authentication Required' [408]='Request Time-out' [409]=Conflict [410]=Gone
    [500]='Internal Server Error' [501]='Not Implemented' [502]='Bad Gateway' [503]='Service Unavailable' \
      [504]='Gateway Time-out')
  common::err "URL ${*: -1} returned error code: $code ${reasons[$code]-}"
}

common::jq() {
  jq "$@" 2> /dev/null || common::err "Could not process JSON input"
}

# Prints a file with each ${NAME} replaced by what the environment has for it; $NAME and commands stay as they are.
common::envsubst() {
  local line before name
  [ -f "$1" ] || return 0
  while IFS= read -r line || [ -n "$line" ]; do
    before=
    while [[ $line =~ \$\{([A-Za-z_][A-Za-z0-9_]*)\} ]]; do
      name=${BASH_REMATCH[1]}
      before+=${line%%"\${$name}"*}
      # Only what is exported; this shell has variables of its own.
      before+=$(printenv "$name" || true)  # what is not set is empty
      line=${line#*"\${$name}"}
    done
    printf '%s\n' "$before$line"
  done < "$1"
}
