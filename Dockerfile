# One image for every service of docker-compose.yaml: Airflow's, Spark's and Hindcast's own.

FROM maven:3.9.9-eclipse-temurin-17 AS jars
COPY include/hindcast_sandbox/poms /poms
RUN mvn --batch-mode --quiet --file /poms/spark/pom.xml dependency:copy-dependencies -DoutputDirectory=/jars/spark \
    && mvn --batch-mode --quiet --file /poms/s3/pom.xml dependency:copy-dependencies -DoutputDirectory=/jars/s3

FROM python:3.11.13-slim-bookworm
# Spark runs on the Java runtime; procps gives its launch scripts `ps`.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

# The packages change seldom: they come before the code, so that a change of code builds in seconds.
COPY requirements.txt /opt/hindcast/
RUN pip install --no-cache-dir --requirement /opt/hindcast/requirements.txt

COPY --from=jars /jars /opt/hindcast/jars
COPY pyproject.toml /opt/hindcast/
COPY LICENSE /opt/hindcast/
COPY include /opt/hindcast/include
COPY dags /opt/hindcast/dags
COPY plugins /opt/hindcast/plugins
COPY spark_apps /opt/hindcast/spark_apps
# The metadata that the build leaves beside the code would be a second package to Airflow.
RUN pip install --no-cache-dir --no-deps --editable /opt/hindcast \
    && rm -rf /opt/hindcast/include/hindcast.egg-info

# The code belongs to root and is read; the user owns the folders that are written (a new volume takes over their owner).
RUN useradd --uid 10001 --create-home hindcast \
    && mkdir --parents /var/lib/hindcast /var/lib/airflow /var/lib/spark \
    && chown hindcast:hindcast /var/lib/hindcast /var/lib/airflow /var/lib/spark
USER hindcast
WORKDIR /var/lib/hindcast

ENV PYTHONPATH=/opt/hindcast/include \
    PYTHONUNBUFFERED=1 \
    PYSPARK_PYTHON=/usr/local/bin/python \
    GX_ANALYTICS_ENABLED=false \
    AIRFLOW_HOME=/var/lib/airflow \
    HINDCAST_HOME=/var/lib/hindcast \
    HINDCAST_JARS_DIR=/opt/hindcast/jars/spark

CMD ["hindcast", "--help"]
