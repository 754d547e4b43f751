# shellcheck shell=bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: images of a registry that speaks Docker's protocol.

tokens=$ENROOT_CACHE_PATH/.tokens.$EUID
credentials=$ENROOT_CONFIG_PATH/.credentials
scheme=https
[ -z "${ENROOT_ALLOW_HTTP-}" ] || scheme=http
curl_options=(--proto "=https${ENROOT_ALLOW_HTTP:+,http}" --retry "$ENROOT_TRANSFER_RETRIES" \
  --connect-timeout "$ENROOT_CONNECT_TIMEOUT"
  --max-time "$ENROOT_TRANSFER_TIMEOUT" -SsL)
index_types='application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.index.v1+json'
manifest_types='application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json'

docker::architecture() {  # as the kernel calls it
  case ${1:-$(uname -m)} in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) common::err "Unsupported architecture: $1" ;;
  esac
}

# Sets user, registry, image and tag from docker://[USER@][REGISTRY#]IMAGE[:TAG][@DIGEST] or
# docker://[USER@]REGISTRY/IMAGE….
docker::parse() {  # uri
  local rest=${1#docker://} first digest=
  user='' registry=registry-1.docker.io image='' tag=''
  if [[ $rest =~ ^(.+)@(sha256:[[:alnum:]]+)$ ]]; then
    rest=${BASH_REMATCH[1]} digest=${BASH_REMATCH[2]}
  fi
  if [[ $rest =~ ^(.+)@(.+)$ ]]; then
    user=${BASH_REMATCH[1]} rest=${BASH_REMATCH[2]}
  fi
  if [[ $rest == *'#'* ]]; then
    registry=${rest%%'#'*} image=${rest#*'#'}
  else
    first=${rest%%/*} image=$rest
    # Whether the first part is a host or a Docker Hub namespace shows in its dot or port.
    if [[ $rest == */* && $first == *[.:]* ]]; then
      registry=$first image=${rest#*/}
    fi
  fi
  if [[ $image =~ ^(.+):([^/:]+)$ ]]; then
    image=${BASH_REMATCH[1]} tag=${BASH_REMATCH[2]}
  fi
  [[ -n $registry && $registry != */* && $image =~ ^[A-Za-z0-9/._-]+$ && $tag =~ ^[[:alnum:]._-]*$ ]] ||
    common::err "Invalid image reference: $1"
  [[ $registry != registry-1.docker.io || $image == */* ]] || image=library/$image
  tag=${digest:-${tag:-latest}}
  if [[ -z $user && -s $credentials ]]; then
    user=$(awk -v host="${registry%:*}" '$1 == "machine" && $2 == host && $3 == "login" { print $4; exit }' \
      "$credentials")
  fi
}

# The credentials file, whose passwords may be shell expressions: "password $TOKEN", "password $(pass show registry)".
docker::netrc() {
  local machine host login name keyword password
  while read -r machine host login name keyword password; do
    # A person wrote this file for his own use; evaluating it is what it is for.
    [[ $password != '$'* ]] || password=$(eval "echo $password")
    echo "$machine $host $login $name $keyword $password"
  done < "$credentials"
}

# Finds out whether the registry wants a token, gets it, and leaves it for curl in "$token".
docker::authenticate() {  # url
  local headers challenge method realm secret request=()
  token=
  common::log INFO "Querying registry for permission grant"
  headers=$(CURL_IGNORE=401 common::curl "${curl_options[@]}" -I -- "$1")
  challenge=$(tr -d '\r' <<< "$headers" | sed -n 's/^www-authenticate: *//Ip' | head -n 1)
  if [ -z "$challenge" ]; then
    common::log INFO "Permission granted"
    return
  fi
  method=${challenge%% *}
  realm=$(sed -n 's/.*[Rr]ealm="\([^"]*\)".*/\1/p' <<< "$challenge")
  [ -n "$realm" ] || common::err "Could not parse authentication realm from $1"

  common::log INFO "Authenticating with user: ${user:-<anonymous>}"
  if [ -n "$user" ]; then
    if awk -v host="${registry%:*}" -v user="$user" '$2 == host && $4 == user { found = 1 } END { exit !found }' \
      "$credentials" 2> /dev/null; then
      common::log INFO "Using credentials from file: $credentials"
      exec {netrc}< <(docker::netrc)
      request+=(--netrc-file "/proc/self/fd/$netrc")
    else
      request+=(-u "$user")
    fi
  fi
  case $method in
    Bearer)
      while IFS='=' read -r key value; do
        [ "$key" = realm ] || request+=(--data-urlencode "$key=$value")
      done < <(grep -oE '[a-z]+="[^"]*"' <<< "${challenge#* }" | tr -d '"')
      secret=$(common::curl "${curl_options[@]}" -G "${request[@]}" -- "$realm" |
        common::jq -r '.token // .access_token // empty') ;;
    Basic)
      # As upstream does, a refusal says no more here than its exit code.
      secret=$(common::curl "${curl_options[@]}" -G -v "${request[@]}" -- "$1" 2>&1 > /dev/null |
        sed -n 's/\r$//; s/^> Authorization: Basic //Ip') ;;
    *) common::err "Unsupported authentication method $method" ;;
  esac
  [ ! -v netrc ] || exec {netrc}<&-
  if [ -n "$secret" ]; then
    # A file, as a command line can be read by everyone.
    token=$tokens/$registry.$$
    (umask 077 && mkdir -p "$tokens" && printf 'header "Authorization: %s %s"' "$method" "$secret" > "$token")
    common::log INFO "Authentication succeeded"
  fi
}

# Sets manifest_url to the manifest for the architecture.
docker::find_manifest() {  # architecture [message]
  local answer digest
  manifest_url=$scheme://$registry/v2/$image/manifests/$tag
  docker::authenticate "$manifest_url"
  [ -z "$token" ] || curl_options+=(-K "$token")
  common::log INFO "${2-}"
  answer=$(CURL_IGNORE='401 404' common::curl "${curl_options[@]}" -H "Accept: $index_types" -- "$manifest_url")
  digest=$(jq -r --arg architecture "$1" \
    'first(.manifests[]? | select(.platform.architecture == $architecture).digest) // empty' <<< \
    "$answer" 2> /dev/null) || digest=
  [ -z "$digest" ] || manifest_url=$scheme://$registry/v2/$image/manifests/$digest
}

# Downloads a blob into the cache, where it lies uncompressed inside zstd. It gets its name only once it is whole and
# its digest right, so that other imports, which may run at the same time, see all of it or nothing.
docker::download() (  # digest:compression
  digest=${1%:*} url=$scheme://$registry/v2/$image/blobs/sha256:${1%:*}
  umask 037
  [ ! -e "$ENROOT_CACHE_PATH/$digest" ] || exit 0
  part=$(mktemp -p "$ENROOT_CACHE_PATH" "$digest.XXXXXXXXXX")
  trap 'rm -f "$part" "$part.sum"' EXIT
  if [ "${1#*:}" = zstd ]; then
    curl "${curl_options[@]}" -f -- "$url" | tee >(sha256sum > "$part.sum") > "$part"
  else
    curl "${curl_options[@]}" -f -- "$url" | tee >(sha256sum > "$part.sum") | "$ENROOT_GZIP_PROGRAM" -d -f -c |
      zstd -q -f -o "$part" "$ENROOT_ZSTD_OPTIONS"
  fi
  until [ -s "$part.sum" ]; do sleep 0.01; done
  read -r sum _ < "$part.sum"
  if [ "$sum" != "$digest" ]; then
    echo "Checksum mismatch: $digest" >&2
    exit 1
  fi
  chmod 640 "$part"
  mv -n "$part" "$ENROOT_CACHE_PATH/$digest"
)

docker::extract() {  # number:digest
  mkdir "${1%:*}" &&
    tar -C "${1%:*}" --warning=no-timestamp --anchored --exclude='dev/*' --exclude='./dev/*' \
    --use-compress-program=zstd \
      --delay-directory-restore -pxf "$ENROOT_CACHE_PATH/${1#*:}"
}

# Puts an image's layers into the directories 1 (the uppermost), 2, … of the current directory, and what its
# configuration says into 0.
docker::fetch_layers() {  # architecture
  local manifest config blob missing=() layers=() i
  docker::find_manifest "$1" "Fetching image manifest list"
  common::log INFO "Fetching image manifest"
  manifest=$(common::curl "${curl_options[@]}" -H "Accept: $manifest_types" -- "$manifest_url")
  config=$(common::jq -r '.config.digest // empty | ltrimstr("sha256:")' <<< "$manifest")
  # In older manifests, one type of layer serves for all.
  readarray -t layers < <(common::jq -r '.layers // [] | reverse[] | (.digest | ltrimstr("sha256:")) + (if .mediaType | endswith("zstd") then ":zstd" else ":gzip" end)' <<< "$manifest")
  if [[ -z $config || ${#layers[@]} -eq 0 ]]; then
    common::err "Could not parse digest information from $manifest_url"
  fi
  docker::download "$config:gzip"
  for blob in "${layers[@]}"; do
    [ -e "$ENROOT_CACHE_PATH/${blob%:*}" ] || missing+=("$blob")
  done
  if (( ${#missing[@]} )); then
    common::log INFO "Downloading ${#missing[@]} missing layers..."
    common::parallel "$ENROOT_MAX_CONNECTIONS" docker::download "${missing[@]}"
  else
    common::log INFO "Found all layers in cache"
  fi

  common::log INFO "Extracting image layers..."
  for i in "${!layers[@]}"; do layers[i]=$((i + 1)):${layers[i]%:*}; done
  common::parallel "$ENROOT_MAX_PROCESSORS" docker::extract "${layers[@]}"
  common::fixperms .
  common::log INFO "Converting whiteouts..."
  common::parallel "$ENROOT_MAX_PROCESSORS" enroot-aufs2ovlfs "${layers[@]%:*}"
  mkdir 0
  zstd -q -d -o config "$ENROOT_CACHE_PATH/$config"
  docker::configure 0 config "$1"
  lowest=${#layers[@]}
}

# Writes an image's configuration where `start` looks for it: /etc/fstab, /etc/environment, and /etc/rc, which runs
# entry point and command.
docker::configure() {  # directory config_file architecture
  local etc=$1/etc directory words entrypoint its
  mkdir -p "$etc"
  its=$(common::jq -r '.architecture // .Architecture // empty' "$2")
  [ "$3" = "$its" ] || common::log WARN "Image architecture doesn't match the requested one: $its != $3"
  # shellcheck disable=SC2016  # ${ENROOT_ROOTFS} is for `start` to replace
  common::jq -r '.config.Volumes // {} | keys[] | "${ENROOT_ROOTFS}\(.) \(.) none x-create=dir,bind,rw,nosuid,nodev"' \
    "$2" > "$etc/fstab"
  common::jq -r '.config.Env // [] | .[]' "$2" > "$etc/environment"
  directory=$(common::jq -r '.config.WorkingDir // "" | if . == "" then "/" else . end | @sh' "$2")
  entrypoint=$(common::jq -r '.config.Entrypoint // [] | @sh' "$2")
  words=$(common::jq -r '.config.Cmd // [] | @sh' "$2")
  [ -n "$entrypoint$words" ] || words=/bin/sh
  mkdir -p "$1/$(common::jq -r '.config.WorkingDir // ""' "$2")"
  {
    common::jq -r '.config.Labels // {} | to_entries[] | "# \(.key) \(.value | gsub("\n"; " "))"' "$2"
    echo "mkdir -p $directory 2> /dev/null"
    echo "cd $directory && unset OLDPWD || exit 1"
    echo 'if [ -s /etc/rc.local ]; then . /etc/rc.local; fi'
    # shellcheck disable=SC2016  # the container's shell expands it
    echo 'if [ $# -gt 0 ]; then exec '"$entrypoint"' "$@"; else exec '"$entrypoint $words"'; fi'
  } > "$etc/rc"
  echo '# Read by /etc/rc as the container starts: may change its entry point or command.' > "$etc/rc.local"
}

# A file or container's name for an image.
docker::default_name() {
  local name=$image
  [ "$registry" != registry-1.docker.io ] || name=${name#library/}
  echo "${name//\//+}+$tag"
}

docker::work_in_temporary_directory() {
  trap 'common::rmall "$temporary" 2> /dev/null; rm -f "$tokens"/*.$$' EXIT
  temporary=$(common::mktmpdir enroot)
  cd "$temporary" || exit
}

# From the node's own Docker, as whoever runs it may use that.
docker::daemon::import() (  # uri file architecture
  common::checkcmd jq docker mksquashfs tar
  image=${1#dockerd://}
  [[ $image =~ ^[[:alnum:]/._:-]+$ ]] || common::err "Invalid image reference: $1"
  file=$(common::realpath "${2:-${image//[:\/]/+}.sqsh}")
  [ ! -e "$file" ] || common::err "File already exists: $file"
  trap 'common::rmall "$temporary" 2> /dev/null; docker rm -f -v "${temporary##*/}" > /dev/null 2>&1' EXIT
  temporary=$(common::mktmpdir enroot)
  cd "$temporary" || exit
  common::log INFO "Fetching image"
  docker create --name "${temporary##*/}" "$image" >&2
  common::log INFO "Extracting image content..."
  mkdir rootfs
  docker export "${temporary##*/}" |
    tar -C rootfs --warning=no-timestamp --anchored --exclude='dev/*' --exclude=.dockerenv -px
  common::fixperms rootfs
  docker inspect "$image" | common::jq '.[] | with_entries(.key |= ascii_downcase)' > config
  docker::configure rootfs config "$(docker::architecture "$3")"
  common::log INFO "Creating squashfs filesystem..."
  # shellcheck disable=SC2086  # words, as the configuration has them
  mksquashfs rootfs "$file" -all-root -no-progress -processors "$ENROOT_MAX_PROCESSORS" $ENROOT_SQUASH_OPTIONS >&2
)

docker::import() (  # uri file architecture
  [[ $1 == docker://* ]] || common::err "Invalid argument: $1"
  common::checkcmd curl grep awk jq parallel tar "$ENROOT_GZIP_PROGRAM" find mksquashfs zstd
  docker::parse "$1"
  architecture=$(docker::architecture "$3")
  file=$(common::realpath "${2:-$(docker::default_name).sqsh}")
  [ ! -e "$file" ] || common::err "File already exists: $file"
  docker::work_in_temporary_directory
  mkdir rootfs
  options="-all-root -no-progress -processors $ENROOT_MAX_PROCESSORS $ENROOT_SQUASH_OPTIONS"
  docker::fetch_layers "$architecture"
  common::log INFO "Creating squashfs filesystem..."
  # shellcheck disable=SC2086  # words, as the configuration has them
  MOUNTPOINT=$PWD/rootfs enroot-mksquashovlfs "$(seq -s: 0 "$lowest")" "$file" $options >&2
)

