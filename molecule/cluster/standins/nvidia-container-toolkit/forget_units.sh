# shellcheck shell=sh
# From 1.20 on the units are no longer in /etc: what an older package has left there goes, and so do the links to it.
for unit in nvidia-cdi-refresh.service nvidia-cdi-refresh.path; do
  rm -f "/etc/systemd/system/$unit" "/etc/systemd/system/multi-user.target.wants/$unit"
done
