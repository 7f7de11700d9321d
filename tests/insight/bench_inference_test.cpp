// Batches of `brrr bench inference`, and what its report says of rows that are made up here. What
// it measures is in tests/e2e/bench_inference_test.cpp.
#include "insight/bench/bench_inference.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "insight/bench/inference_runtimes.h"

namespace brrr::insight {
namespace {

TextSet set_of_lengths(const std::vector<int64_t>& lengths) {
  TextSet set{.name = "mixed", .length = 0, .inputs = {}};
  for (const int64_t length : lengths) {
    io::ModelInput& input = set.inputs.emplace_back();
    for (int64_t i = 0; i < length; ++i) input.ids.push_back(static_cast<int32_t>(10 * length + i));
  }
  return set;
}

InferenceRow made_row(const std::string& runtime, TextOrder order, bool is_sorted, int64_t batch,
                      double ms) {
  InferenceRow row;
  row.runtime = runtime;
  row.precision = Precision::fp32;
  row.batch = batch;
  row.order = order;
  row.is_sorted = is_sorted;
  row.ms = {ms, ms, ms};
  row.repeats = 3;
  row.real_tokens = 100;
  row.padded_tokens = 150;
  return row;
}

std::vector<InferenceRow> made_rows() {
  return {made_row("brrr", TextOrder::packed, false, 16, 1.0),
          made_row("brrr", TextOrder::packed, true, 16, 1.0),
          made_row("brrr", TextOrder::sorted, true, 16, 1.5),
          made_row("brrr", TextOrder::random, false, 16, 2.0),
          made_row("onnxruntime", TextOrder::sorted, true, 16, 1.25),
          made_row("onnxruntime", TextOrder::random, false, 16, 2.5),
          made_row("pytorch", TextOrder::random, false, 16, 0.5),
          made_row("brrr", TextOrder::packed, false, 64, 0.9),
          made_row("brrr", TextOrder::packed, true, 64, 0.95),
          made_row("brrr", TextOrder::sorted, true, 64, 1.2),
          made_row("brrr", TextOrder::random, false, 64, 2.4),
          made_row("onnxruntime", TextOrder::random, false, 64, 3.0)};
}

const Finding& finding(const std::vector<Finding>& all, const std::string& name) {
  return *std::ranges::find(all, name, &Finding::name);
}

TEST(InferenceBatches, CutTheOrderIntoBatches) {
  const TextSet texts = set_of_lengths({3, 9, 4, 7, 5});
  const TextBatches random = batches_of(texts, 2, TextOrder::random, false),
                    sorted = batches_of(texts, 2, TextOrder::sorted, true);
  ASSERT_EQ(random.batches.size(), 3u);
  EXPECT_EQ(random.batches[2].size(), 1u);
  std::vector<size_t> all;
  for (const auto& batch : random.batches) all.insert(all.end(), batch.begin(), batch.end());
  std::ranges::sort(all);
  EXPECT_EQ(all, (std::vector<size_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(sorted.batches, (std::vector<std::vector<size_t>>{{1, 3}, {4, 2}, {0}}));
  // The same seed gives the same order, which packed texts have, too.
  EXPECT_EQ(batches_of(texts, 2, TextOrder::packed, false).batches, random.batches);
  EXPECT_EQ(sorted.real_tokens(), 28);
  EXPECT_EQ(sorted.padded_tokens([](int64_t longest) { return longest; }), 2 * 9 + 2 * 5 + 3);
}

TEST(InferenceBatches, TextsOfOneLengthAreMadeOfAllIds) {
  const TextSet made = texts_of_length(set_of_lengths({2, 3}), 4, 3);
  EXPECT_EQ(made.name, "4");
  EXPECT_EQ(made.length, 4);
  ASSERT_EQ(made.inputs.size(), 3u);
  EXPECT_EQ(made.inputs[0].ids, (std::vector<int32_t>{20, 21, 30, 31}));
  EXPECT_EQ(made.inputs[1].ids, (std::vector<int32_t>{32, 20, 21, 30}));
  EXPECT_EQ(made.inputs[1].types.size(), 4u);
}

TEST(InferenceFindings, CompareRows) {
  const std::vector<Finding> all = inference_findings(made_rows());
  EXPECT_EQ(finding(all, "batch_16_to_64_random").here,
            "brrr packed 10% faster, brrr padded 20% slower, onnxruntime 20% slower");
  EXPECT_EQ(finding(all, "batch_16_to_64_sorted").here,
            "brrr packed 5% faster, brrr padded 20% faster");
  EXPECT_EQ(finding(all, "onnxruntime_below_32").here,
            "batch 16: pytorch is, by 5.00x, batch 64: brrr is, by 3.33x");
  EXPECT_EQ(finding(all, "packed_over_padded").figures[1].first, "batch 64");
  EXPECT_NEAR(finding(all, "packed_over_padded").figures[0].second, 2.0, 1e-9);
  EXPECT_NE(
      finding(all, "packed_random_to_sorted").here.find("batch 16 the same, batch 64 5% faster"),
      std::string::npos)
      << finding(all, "packed_random_to_sorted").here;
}

TEST(InferenceFindings, SayWhatTheyNeed) {
  for (const Finding& f : inference_findings({}))
    EXPECT_NE(f.here.find("not measured: it needs"), std::string::npos) << f.name;
  // Rows whose vectors are those of another model count for nothing.
  std::vector<InferenceRow> rows = made_rows();
  for (InferenceRow& row : rows) row.agrees = row.is_ours();
  EXPECT_EQ(finding(inference_findings(rows), "onnxruntime_below_32").here,
            "not measured: it needs --peers with onnxruntime");
}

TEST(InferenceReports, NameTheBestPeer) {
  InferenceReport report;
  report.model = "made-up";
  report.rows = made_rows();
  report.repeats = 3;
  ASSERT_NE(best_peer(report, report.rows[0]), nullptr);
  EXPECT_EQ(best_peer(report, report.rows[0])->runtime, "pytorch");
  report.rows[6].agrees = false;
  EXPECT_EQ(best_peer(report, report.rows[0])->runtime, "onnxruntime");
  report.findings = inference_findings(report.rows);
  const std::string table = inference_table(report);
  for (const char* part : {"made-up", "batch 16, the sentences", "packed, sorted", "1.25x",
                           "differs", "+50%", "published: batch 16 -> 64"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  const std::string page = inference_page(report);
  for (const char* part : {"<h1>Inference: made-up", "Runtimes side by side", "Over batch size",
                           "What sorting gains", "<img ", "onnxruntime"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(page.find("src=\"http"), std::string::npos);
}

TEST(InferenceReports, MarkupInNamesIsText) {
  InferenceReport report;
  report.model = "<script>alert(1)</script>";
  report.rows = made_rows();
  report.notes = {"<b>"};
  EXPECT_EQ(inference_page(report).find("<script>alert"), std::string::npos);
}

TEST(InferenceReports, RepeatsMayDiffer) {
  InferenceReport report;
  report.rows = made_rows();
  report.repeats = 3;
  EXPECT_EQ(repeats_text(report), "3 interleaved repeats");
  report.rows[0].repeats = 1;
  EXPECT_EQ(repeats_text(report), "1 to 3 interleaved repeats");
}

}  // namespace
}  // namespace brrr::insight
