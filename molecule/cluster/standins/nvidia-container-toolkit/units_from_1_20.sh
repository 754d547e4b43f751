# shellcheck shell=sh
# What installing nvidia-container-toolkit-base does at its end, from 1.20 on. The units are no longer in /etc: what an
# older package has left there goes, and so do the links to it. They are enabled whatever state systemd is in, and
# started where it runs.
/usr/bin/nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place
for unit in nvidia-cdi-refresh.path nvidia-cdi-refresh.service; do
  rm -f "/etc/systemd/system/$unit" "/etc/systemd/system/multi-user.target.wants/$unit"
  ! command -v systemctl > /dev/null 2>&1 || systemctl --quiet enable "$unit" || echo "$unit could not be enabled" >&2
done
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload > /dev/null 2>&1 || :
  systemctl start nvidia-cdi-refresh.path nvidia-cdi-refresh.service > /dev/null 2>&1 || :
fi
