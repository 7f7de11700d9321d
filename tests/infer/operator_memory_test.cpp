// Every ONNX operator keeps the limit that Brrr itself calls enough for it, or is refused before
// it takes more: what the process really has resident is measured.

#include <gtest/gtest.h>

#include <malloc.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "backend/cpu/target.h"
#include "base/memory.h"
#include "base/rng.h"
#include "infer/operator_cases.h"
#include "infer/runner.h"
#include "modules/onnx/call.h"
#include "support/long_proof.h"
#include "support/onnx_writer.h"
#include "train/fit.h"

namespace brrr::test {
namespace {

using namespace onnx_file;  // NOLINT: builders of bytes

std::vector<std::string> split_at_each(std::string_view text, char at) {
  std::vector<std::string> parts;
  std::istringstream in{std::string(text)};
  for (std::string part; std::getline(in, part, at);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

/// "=i64[2]:7,8" and the like, see operator_cases.h.
struct CaseOperand {
  explicit CaseOperand(std::string text) {
    is_absent = text == "-";
    if (is_absent) return;
    is_constant = text[0] == '=';
    if (is_constant) text.erase(0, 1);
    const size_t open = text.find('['), close = text.find(']');
    dtype = *dtype_from_name(text.substr(0, open));
    for (const std::string& size : split_at_each(text.substr(open + 1, close - open - 1), ','))
      dims.push_back(std::stoll(size));
    tensor = HostTensor(dtype, Shape(dims));
    const std::string rest = text.substr(close + 1);
    const std::vector<std::string> given =
        is_constant ? split_at_each(rest.substr(1), ',') : std::vector<std::string>();
    const int64_t below = rest.starts_with('%') ? std::stoll(rest.substr(1)) : 2;
    RngStream random({7, 0}, 0);
    fill_tensor({dtype, tensor.shape}, tensor.bytes.data(), [&](int64_t i) {
      if (is_constant) return std::stod(given.at(static_cast<size_t>(i)));
      if (!is_float(dtype))
        return static_cast<double>(random.next_below(static_cast<uint64_t>(below)));
      const double x = static_cast<double>(random.next_below(1 << 24)) / (1 << 24);
      return rest == "+" ? 0.5 + x : 2 * x - 1;
    });
  }
  /// TensorProto.DataType
  int type() const {
    static const std::map<DType, int> kTypes{{DType::f32, 1}, {DType::u8, 2},  {DType::i8, 3},
                                             {DType::i32, 6}, {DType::i64, 7}, {DType::boolean, 9},
                                             {DType::f64, 11}};
    return kTypes.at(dtype);
  }
  bool is_absent = false, is_constant = false;
  DType dtype = DType::f32;
  std::vector<int64_t> dims;
  HostTensor tensor;
};

std::string attribute_bytes(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals), value = text.substr(equals + 1);
  if (value[0] == '\'')
    return attribute(name, bytes_field(4, value.substr(1, value.size() - 2)), 3);
  if (value[0] != '[')
    return value.find('.') == std::string::npos ? integer(name, std::stoll(value))
                                                : number(name, std::stof(value));
  const std::string list = value.substr(1, value.size() - 2);
  if (list.find('.') == std::string::npos) {
    std::vector<int64_t> integers;
    for (const std::string& part : split_at_each(list, ',')) integers.push_back(std::stoll(part));
    return integer_list(name, integers);
  }
  std::string numbers;
  for (const std::string& part : split_at_each(list, ','))
    numbers += number_field(7, std::stof(part));
  return attribute(name, numbers, 6);
}

/// A file with one node, and its inputs.
struct OneNode {
  explicit OneNode(const OperatorCase& c) {
    Texts names, outputs, declared, constants, attributes;
    for (const std::string& text : split_at_each(c.operands, ' ')) {
      CaseOperand operand(text);
      names.push_back(operand.is_absent ? "" : "x" + std::to_string(names.size()));
      if (operand.is_absent) continue;
      if (operand.is_constant) {
        const auto* content = reinterpret_cast<const char*>(operand.tensor.bytes.data());
        constants.push_back(tensor(
            names.back(), operand.dims,
            std::vector<char>(content, content + operand.tensor.bytes.size()), operand.type()));
      } else {
        declared.push_back(value(names.back(), operand.type(), operand.dims));
        inputs.emplace(names.back(), std::move(operand.tensor));
      }
    }
    for (int i = 0; i < c.outputs; ++i) outputs.push_back("y" + std::to_string(i));
    for (const std::string& text : split_at_each(c.attributes, ' '))
      attributes.push_back(attribute_bytes(text));
    Texts results;
    for (const std::string& name : outputs) results.push_back(bytes_field(1, name));
    bytes =
        varint_field(1, 9) +
        bytes_field(7, graph(declared, results,
                             {node(c.op_type, names, outputs, attributes, c.domain)}, constants)) +
        bytes_field(8, opset("", static_cast<uint64_t>(c.opset))) +
        bytes_field(8, opset(c.domain.empty() ? "com.microsoft" : c.domain, 1));
    module = onnx::open_module(onnx::File::parse(bytes, "m.onnx"));
  }
  std::string bytes;
  PortValues inputs;
  std::shared_ptr<const Runnable> module;
};

/// The peak of what is resident counts from here.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

std::unique_ptr<infer::Runner> runner_within(const OneNode& node, int64_t limit) {
  machine::trim_heap();
  return std::make_unique<infer::Runner>(
      node.module, cpu::cpu_backend(), RunnableOptions{},
      infer::Memory{{limit, "--memory-limit"}, "smaller inputs"});
}

std::string key_of(std::string_view domain, std::string_view op_type) {
  return fmt::format("{}{}{}", domain, domain.empty() ? "" : "_", op_type);
}

TEST(OperatorMemory, EveryOperatorHasACase) {
  std::set<std::string> have;
  for (const OperatorCase& c : kOperatorCases) have.insert(key_of(c.domain, c.op_type));
  for (const UnmeasuredOperator& c : kUnmeasuredOperators)
    EXPECT_TRUE(have.insert(key_of(c.domain, c.op_type)).second) << c.op_type << ": " << c.why;
  for (const onnx::OperatorRow* row : onnx::all_operators())
    EXPECT_TRUE(have.contains(key_of(row->domain, row->op_type)))
        << row->domain << " " << row->op_type << " is read; operator_cases.h needs operands for it";
}

/// What a run within so many bytes more than the process has is refused with.
std::string refusal_within(const OneNode& node, int64_t more) {
  machine::trim_heap();
  try {
    runner_within(node, resident_memory().needed() + more)->run(node.inputs);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoMemory) << error.what();
    return error.what();
  }
  return "";
}

// Values that are read, or computed, while a graph is built are no part of a program's plan.
TEST(OperatorMemory, ValuesThatDecideAboutSizesAreRefusedBeforeTheyAreMade) {
#ifdef BRRR_SANITIZED
  GTEST_SKIP() << "the sanitizer takes memory of its own";
#endif
  constexpr int64_t kMiB = int64_t{1} << 20;
  const OneNode boxes(
      {"", "NonMaxSuppression", "f32[1,32768,4] f32[1,32,32768] =i64[1]:10 =f32[1]:0.5"});
  const std::string read = refusal_within(boxes, 40 * kMiB);
  EXPECT_NE(read.find("sizes depend on the values of "), std::string::npos) << read;
  EXPECT_NE(read.find("while a program is built for them"), std::string::npos) << read;
  // The shape is a vector of 4 Mi sizes, the last of which is wrong.
  const OneNode range({"", "Range", "=i64[]:0 =i64[]:4194304 =i64[]:1"});
  std::string graph_bytes =
      graph({}, {value("y", kFloat, {-1})},
            {node("Range", {"a", "b", "c"}, {"r"}), node("ConstantOfShape", {"r"}, {"y"})},
            {onnx_file::integers("a", {}, {1}), onnx_file::integers("b", {}, {4194304}),
             onnx_file::integers("c", {}, {1})});
  OneNode shape(range);
  shape.bytes = model(graph_bytes);
  shape.module = onnx::open_module(onnx::File::parse(shape.bytes, "m.onnx"));
  const std::string known = refusal_within(shape, 8 * kMiB);
  EXPECT_NE(known.find("values on which shapes depend need "), std::string::npos) << known;
}

TEST(OperatorMemory, EveryOperatorKeepsTheLimitThatIsCalledEnough) {
#ifdef BRRR_SANITIZED
  GTEST_SKIP() << "the sanitizer takes memory of its own";
#endif
  constexpr int64_t kAnything = int64_t{1} << 40, kMost = int64_t{1} << 32,
                    kVaries = int64_t{2} << 20;
  constexpr size_t kSample = 16;
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);  // as the program does
  const char* const only = std::getenv("BRRR_ONNX_CASES");
  std::vector<OperatorCase> cases(std::begin(kOperatorCases), std::end(kOperatorCases));
  if (only != nullptr)
    std::erase_if(cases, [&](const OperatorCase& c) { return c.op_type != only; });
  else
    cases = sampled(cases, kSample, "OperatorMemory");
  for (const OperatorCase& c : cases) {
    SCOPED_TRACE(key_of(c.domain, c.op_type));
    const OneNode node(c);
    try {
      int64_t limit = 0;
      bool is_complete = false;
      {
        const auto runner = runner_within(node, kAnything);
        runner->prepare(node.inputs);
        is_complete = runner->is_complete();
        limit = runner->forecast().needed() + machine::kVariesBetweenRuns;
      }
      // A module whose sizes depend on data may be refused when they are known; of another one,
      // what the process has beside it varies a little.
      const int64_t enough = limit + kVaries;
      for (bool has_run = false; !has_run; limit += is_complete ? kVaries / 4 : limit / 4) {
        ASSERT_LE(limit, kMost);
        const auto runner = runner_within(node, limit);
        reset_peak();
        try {
          runner->run(node.inputs);
          has_run = true;
        } catch (const UserError& error) {
          ASSERT_EQ(error.code(), ExitCode::kNoMemory) << error.what();
          ASSERT_TRUE(!is_complete || limit < enough)
              << "refused within what was called enough: " << error.what();
        }
        const ResidentMemory memory = resident_memory();
        EXPECT_LE(memory.peak, limit)
            << (has_run ? "run" : "refused") << " within " << memory_text(limit);
        if (only != nullptr)
          fmt::print("{}: {} of {}\n", c.op_type, memory_text(memory.peak), memory_text(limit));
      }
    } catch (const UserError& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

}  // namespace
}  // namespace brrr::test
