#!/bin/sh
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# A stand-in for the test that AWS' installer runs: there is nothing to send.
echo 'Starting server...'
echo 'Starting client...'
exec /opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM > /dev/null
