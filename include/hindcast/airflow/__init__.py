"""Airflow's side: operators, triggers and the page of the plugin."""
