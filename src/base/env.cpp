#include "base/env.h"

#include <cstdlib>
#include <cstring>

#include "base/errors.h"

namespace brrr::env {
namespace {

constexpr Variable kVariables[] = {
    {"BRRR_DATA", "folder with corpora and tokenizer files, searched before the cache"},
    {"BRRR_MODELS", "tests: folder with published models (else ~/.cache/brrr/models)"},
    {"BRRR_CACHE", "cache folder (else XDG_CACHE_HOME/brrr, else ~/.cache/brrr)"},
    {"BRRR_OFFLINE", "set: never use the network"},
    {"BRRR_AUTOTUNE", "0: never measure which GPU kernel is fastest, take the first"},
    {"BRRR_CUDA_GRAPHS",
     "0: launch every kernel of a step one by one instead of replaying a CUDA graph"},
    {"CUDA_LAUNCH_BLOCKING", "1: wait for every GPU kernel, so that an error names its op; slow"},
    {"BRRR_ISA", "best instruction set to use: portable, sse4, avx2, avx512, amx"},
    {"BRRR_ASSUME_ISA",
     "tests: what the processor is assumed to support, whatever it reports "
     "(tests/support/amx_trap.cpp)"},
    {"BRRR_BUILD_SECONDS", "set by ./brrr: how long it built before it became this process"},
    {"BRRR_COMMAND", "set by ./brrr: how it was started, for the commands that messages suggest"},
    {"BRRR_DISABLE_PASS", "comma-separated passes to disable"},
    {"BRRR_DISABLE_KERNEL",
     "comma-separated kernels to disable, by the names of --explain-dispatch"},
    {"BRRR_VERIFY",
     "1: verify the graph after each pass of the compiler, as tests do; a wrong one ends the "
     "program with an internal error that names the pass"},
    {"BRRR_FAULT",
     "tests: fail or pause at a named point, e.g. 'checkpoint.write=enospc'; only on one rank: "
     "'start@1=kill'"},
    {"BRRR_TEST_LONG", "tests: run the long proofs whole, as ./brrr test --long does"},
    {"BRRR_FUZZ_GRAPHS", "tests: how many random graphs each test of fusion makes"},
    {"BRRR_UPDATE", "tests: rewrite golden files and generated documents instead of comparing"},
    {"OMP_NUM_THREADS", "number of threads"},
    {"OMP_WAIT_POLICY",
     "how a thread waits for the team's next work: active (polls), passive (sleeps); else it polls "
     "for some tens of microseconds"},
    {"CUDA_HOME", "folder of the CUDA toolkit, searched for its libraries before the system's"},
    {"XDG_CACHE_HOME", "base of the cache folder"},
    {"HOME", "home folder"},
    {"HF_HOME", "Hugging Face's folder (else XDG_CACHE_HOME/huggingface, ~/.cache/huggingface)"},
    {"HF_HUB_CACHE", "where models by name are kept (else hub/ in Hugging Face's folder)"},
    {"HF_TOKEN", "access token for private and gated models (else the file token in that folder)"},
    {"HF_ENDPOINT", "where models are downloaded from (else https://huggingface.co)"},
    {"HF_HUB_OFFLINE", "1: download no models, use those in the cache"},
    {"BRRR_RUN_ID", "tells runs of several ranks on one host apart: the same for all of a run"},
    {"BRRR_RANK_TIMEOUT", "seconds that a rank may be silent before the run ends (12)"},
    {"BRRR_LAUNCHER_MEMORY", "set by `brrr launch --elastic` for the ranks that it starts"},
    {"RANK", "torchrun: the number of this process among those of the run"},
    {"WORLD_SIZE", "torchrun: how many there are"},
    {"LOCAL_RANK", "torchrun: its number among those of this host"},
    {"LOCAL_WORLD_SIZE", "torchrun: how many are on this host"},
    {"MASTER_ADDR", "torchrun: where the ranks meet; names the run"},
    {"MASTER_PORT", "torchrun: likewise"},
    {"OMPI_COMM_WORLD_RANK", "Open MPI: as RANK"},
    {"OMPI_COMM_WORLD_SIZE", "Open MPI: as WORLD_SIZE"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI: as LOCAL_RANK"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI: as LOCAL_WORLD_SIZE"},
    {"OMPI_MCA_ess_base_jobid", "Open MPI: names the run"},
    {"OMPI_MCA_orte_jobfam_session_dir", "Open MPI: its files of this job on this host"},
    {"OMPI_MCA_orte_top_session_dir", "Open MPI: its files of all jobs on this host"},
    {"PMI_RANK", "MPICH, Intel MPI: as RANK"},
    {"PMI_SIZE", "MPICH, Intel MPI: as WORLD_SIZE"},
    {"MPI_LOCALRANKID", "MPICH, Intel MPI: as LOCAL_RANK"},
    {"MPI_LOCALNRANKS", "MPICH, Intel MPI: as LOCAL_WORLD_SIZE"},
    {"PMIX_RANK", "PMIx: as RANK"},
    {"PMIX_NAMESPACE", "PMIx: names the run"},
    {"SLURM_PROCID", "Slurm: as RANK"},
    {"SLURM_NTASKS", "Slurm: as WORLD_SIZE"},
    {"SLURM_STEP_NUM_TASKS", "Slurm: likewise, for one step of a job"},
    {"SLURM_LOCALID", "Slurm: as LOCAL_RANK"},
    {"SLURM_NODEID", "Slurm: the number of this host"},
    {"SLURM_TASKS_PER_NODE", "Slurm: how many ranks are on each host"},
    {"SLURM_STEP_TASKS_PER_NODE", "Slurm: likewise, for one step of a job"},
    {"SLURM_JOB_ID", "Slurm: names the run"},
    {"SLURM_JOBID", "Slurm: likewise, the older name"},
    {"SLURM_STEP_ID", "Slurm: likewise; a process without it is no task of srun"},
    {"SLURM_STEPID", "Slurm: likewise, the older name"},
    {"NO_COLOR", "set: no colour on the terminal"},
    {"TERM", "terminal type; 'dumb' gets plain progress lines"},
    {"COLUMNS", "terminal width for the progress bar"},
};

}  // namespace

std::span<const Variable> all() { return kVariables; }

std::optional<std::string> get(const char* name) {
  bool known = false;
  for (const Variable& v : kVariables) known |= std::strcmp(v.name, name) == 0;
  BRRR_CHECK(known, "environment variable {} is not in the table of base/env.cpp", name);
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string program() { return get("BRRR_COMMAND").value_or("brrr"); }

std::string as_typed(std::string message) {
  for (const char* quote : {"`", "'"}) {
    const std::string command = std::string(quote) + "brrr ", typed = quote + program() + " ";
    for (size_t at = 0; (at = message.find(command, at)) != std::string::npos; at += typed.size())
      message.replace(at, command.size(), typed);
  }
  return message;
}

}  // namespace brrr::env
