#!/bin/sh
# A stand-in for SageMakerHealthMonitoringAgent: runs, and looks at nothing.
exec sleep infinity
