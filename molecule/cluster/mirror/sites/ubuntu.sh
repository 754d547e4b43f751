# shellcheck shell=bash disable=SC2154  # top and the like are from lib.sh
# Ubuntu's own archive: of its packages those that login nodes get, which are the distribution's of this machine.
ubuntu=$top/archive.ubuntu.com/ubuntu
mkdir -p "$ubuntu/pool/universe"
while read -r name; do cp /debs/"$name"_*.deb "$ubuntu/pool/universe"; done < /debs/tools.list
apt_suite "$ubuntu" noble pool Ubuntu Ubuntu universe
gpg --batch --quiet --export > "$ubuntu/ubuntu-archive-keyring.gpg"
