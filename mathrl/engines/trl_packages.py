"""TRL and what it stands on, imported in the one order that works.

mathrl hides accelerate from transformers at its import, which TRL's trainers need: accelerate comes first. TRL tells
the Hugging Face hub of each training unless HF_HUB_DISABLE_TELEMETRY is set, which is read at its import. It imports
MLflow, which takes seconds, unless transformers says that there is none; mathrl mirrors to MLflow itself.
"""

import os

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DISABLE_MLFLOW_INTEGRATION", "TRUE")

import accelerate  # noqa: F401  # isort: skip
import mathrl.models.transformers_import  # noqa: F401  # isort: skip
from datasets import Dataset as Dataset
from transformers import PrinterCallback as PrinterCallback
from transformers import TrainerCallback as TrainerCallback
from transformers.utils import is_accelerate_available
from trl import GRPOConfig as GRPOConfig
from trl import GRPOTrainer as GRPOTrainer
from trl import SFTConfig as SFTConfig
from trl import SFTTrainer as SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling

assert is_accelerate_available(), "transformers was imported in this process before, with accelerate hidden"
