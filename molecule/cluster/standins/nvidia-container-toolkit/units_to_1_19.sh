# shellcheck shell=sh
# What installing nvidia-container-toolkit-base does at its end, until 1.19.
/usr/bin/nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place
if command -v systemctl > /dev/null 2>&1; then
  case "$(systemctl is-system-running 2> /dev/null || true)" in
    running | degraded)
      systemctl daemon-reload || echo "Warning: Failed to reload systemd daemon" >&2
      systemctl enable --now nvidia-cdi-refresh.path || echo "Warning: Failed to enable nvidia-cdi-refresh.path" >&2
      systemctl enable --now nvidia-cdi-refresh.service ||
        echo "Warning: Failed to enable nvidia-cdi-refresh.service" >&2
      echo "Regenerating NVIDIA CDI specification..."
      systemctl start nvidia-cdi-refresh.service || echo "Warning: Failed to trigger CDI refresh" >&2
      ;;
  esac
fi
