"""Where the tasks of the corpus loop run: one task per file of pages, on this machine, under Slurm or under Ray."""

from typing import Annotated, Literal

from pydantic import Field

from mathrl.params.section import Section


class LocalExecutor(Section):
    """Processes of this machine."""

    type: Literal["local"] = "local"
    workers: int | None = Field(None, ge=1, description="Files processed at the same time; null: one per core.")


class Cluster(Section):
    """What Slurm and Ray have in common. All machines need the same checkout, environment and state folder."""

    workers: int | None = Field(None, ge=1, description="Jobs that run at the same time; null: no limit.")
    files_per_job: int = Field(1, ge=1, description="Files of pages that one job processes.")
    cpus_per_job: int = Field(1, ge=1, description="Processor cores per job.")
    gb_per_cpu: int = Field(2, ge=1, description="Memory per core in GB.")


class SlurmExecutor(Cluster):
    """Array jobs of Slurm, submitted with sbatch; the stage waits for them."""

    type: Literal["slurm"]
    partition: str = Field(description="Slurm partition.")
    time: str = Field("24:00:00", description="Slurm time limit of a job.")
    qos: str | None = Field(None, description="Slurm quality of service.")
    sbatch: dict[str, str] = Field(default_factory=dict, description="Further options of sbatch, such as account.")


class RayExecutor(Cluster):
    """Tasks of a Ray cluster: that of RAY_ADDRESS, or a local one."""

    type: Literal["ray"]


Executor = Annotated[LocalExecutor | SlurmExecutor | RayExecutor, Field(discriminator="type")]
