"""The embedded default: a broker, Airflow and load as detached processes on this machine."""
