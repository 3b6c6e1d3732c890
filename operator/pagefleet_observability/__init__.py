"""What Prometheus and Grafana are given: rules, alerts and dashboards, written from one source. Pure; reads no cluster."""
