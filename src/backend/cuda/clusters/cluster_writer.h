#pragma once
// From a surveyed body to text. The writer goes over the body twice: first to learn what is needed
// in which phase, then to write.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/clusters/access.h"
#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/clusters/cluster_survey.h"

namespace brrr::cuda {

class ClusterWriter {
 public:
  ClusterWriter(const Cluster& cluster, const GpuDescription& gpu);
  void add_to(LaunchPlan& plan);

 private:
  /// How rows are spread over threads, blocks and groups of a block: functions of their width and
  /// number.
  struct Layout {
    int64_t vector = 4;                 // neighbouring elements of a thread
    int64_t threads = 256, groups = 1;  // that share a row; rows of a block at a time
    int64_t chunks = 1;                 // vectors of a thread in a row
    int64_t tile = 0;                   // columns of a block, where they are split; else 0
    int64_t block_rows = 1, blocks = 1;
    bool exact = true;  // every thread has elements
  };
  struct Read {  // one way to read one operand
    uint32_t operand;
    Access access;
    std::set<int> phases;
    bool held = false;  // in registers from the first phase on
  };
  struct PhaseText {
    std::string loads, lines, stores, tail;
    std::set<std::string> seen;  // loads that are there
  };

  Layout element_layout() const;
  Layout row_layout() const;

  void walk();
  void write_node(NodeId id);
  void write_results(NodeId id);
  void write_result(size_t index, const std::string& value, int phase);
  void add_row_sum(NodeId id, uint32_t port, const std::string& term);
  void write_row_op(NodeId id);
  void write_sum(NodeId id);
  void write_scale(NodeId id);
  void write_transposed(NodeId id);

  std::string value(ValueId v, const Shape& out, int phase, bool hold = false);
  std::string read(uint32_t operand, const Shape& view, const Shape& out, int phase, bool hold);
  std::string load_text(const Read& r, size_t k, int phase) const;
  std::string bits(const Node& node, int phase);
  std::string iota(const Node& node) const;
  bool is_computed_with(NodeId id) const;
  std::string row_value(ValueId v) const;
  std::string loop(const std::string& statement) const;
  std::string each_chunk(const std::string& body) const;
  std::string parameters() const;
  std::string element_text() const;
  std::string row_text() const;
  std::string transposed_text() const;
  std::string block_scales_text() const;
  std::string sums_text() const;
  int64_t all_blocks() const;
  void add_sums(LaunchPlan& plan, const LaunchArg& partials) const;
  void add_scales(LaunchPlan& plan, const LaunchArg& tops) const;
  std::string index_type() const { return s_.elements < (int64_t{1} << 31) ? "u32" : "u64"; }
  DType dtype_of(uint32_t operand) const { return inputs_[operand].dtype; }
  std::vector<uint32_t> results_of(ValueId v) const;
  const std::string& result_type(size_t r) const { return result_types_[r]; }

  const Cluster& c_;
  const Graph& body_;
  const GpuDescription& gpu_;
  ClusterSurvey s_;
  Layout at_;
  std::vector<Type> inputs_;
  std::vector<std::string> result_types_;

  std::vector<Read> reads_;
  std::map<NodeId, int> last_use_;           // of results: the last phase
  std::map<uint32_t, std::string> uniform_;  // operands of one element
  std::vector<int64_t> streams_;             // of random bits, as arguments
  std::vector<PhaseText> text_;
  std::vector<std::string> arrays_;  // declared for each row
  struct Accumulator {
    std::string name;
    std::vector<uint32_t> results;
  };
  std::vector<Accumulator> accumulators_;
};

}  // namespace brrr::cuda
