#!/bin/sh
# Write Alertmanager's configuration from the environment, which Alertmanager itself does not read, and start it.
# ALERT_WEBHOOK_URL, ALERT_EMAIL_TO (with ALERT_SMTP_HOST): where alerts are sent. Neither: they are shown on port 9093 only.
set -eu

quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/''/g")"; }  # a string of YAML

config=${ALERT_CONFIG:-/tmp/alertmanager.yml}
umask 077
{
  echo "route: {receiver: operators, group_by: [alertname], group_wait: 30s, group_interval: 5m, repeat_interval: 12h}"
  echo "receivers:"
  echo "  - name: operators"
  if [ -n "${ALERT_WEBHOOK_URL:-}" ]; then
    echo "    webhook_configs:"
    echo "      - url: $(quoted "$ALERT_WEBHOOK_URL")"
  fi
  if [ -n "${ALERT_EMAIL_TO:-}" ]; then
    if [ -z "${ALERT_SMTP_HOST:-}" ]; then
      echo "ALERT_EMAIL_TO needs ALERT_SMTP_HOST=host:port" >&2
      exit 2
    fi
    echo "    email_configs:"
    echo "      - to: $(quoted "$ALERT_EMAIL_TO")"
    echo "        from: $(quoted "${ALERT_EMAIL_FROM:-$ALERT_EMAIL_TO}")"
    echo "        smarthost: $(quoted "$ALERT_SMTP_HOST")"
    if [ -n "${ALERT_SMTP_USER:-}" ]; then
      echo "        auth_username: $(quoted "$ALERT_SMTP_USER")"
      echo "        auth_password: $(quoted "${ALERT_SMTP_PASSWORD:-}")"
    fi
    echo "        send_resolved: true"
  fi
} > "$config"
exec alertmanager "--config.file=$config" --storage.path=/alertmanager
