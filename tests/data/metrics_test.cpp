// How good predictions are, against scikit-learn, scipy and seqeval, and by hand where the answer
// shows.

#include "data/labelled/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "support/random_text.h"

namespace brrr::io {
namespace {

constexpr int32_t kIgnore = kIgnoreId;
using Ids = std::vector<int32_t>;

// The tables are what tests/golden/make_metrics_goldens.py prints; both sides make the predictions
// from the same words.
std::vector<uint32_t> metric_words(uint32_t stream, size_t count) {
  RngStream random({test::kTextSeed, 0}, stream);
  std::vector<uint32_t> words(4 * count);
  for (uint32_t& word : words) word = random.next_u32();
  return words;
}

TEST(Metrics, ClassesAsScikitLearn) {
  const struct {
    uint32_t stream, classes, count, used;
    double accuracy, precision, recall, f1, matthews, f1_macro, majority;
  } cases[] = {
      {0, 2, 200, 2, 0.80500000000000005, 0.80000000000000004, 0.80808080808080807,
       0.8040201005025126, 0.61003050228769062, 0.80499512487812197, 0.505},
      {1, 2, 30, 1, 1, 0, 0, 0, 0, 1, 1},
      {2, 3, 200, 3, 0.71999999999999997, 0.7193530701754387, 0.71957400295286156,
       0.71896211920998032, 0.57866378577608313, 0.71896211920998032, 0.365},
      {3, 5, 100, 4, 0.71999999999999997, 0.7171474358974359, 0.72143817204301064,
       0.71646320011258091, 0.62783384977252199, 0.71646320011258091, 0.31},
      {4, 7, 5, 7, 0.59999999999999998, 0.29999999999999999, 0.40000000000000002,
       0.33333333333333331, 0.53033008588991071, 0.33333333333333331, 0.4},
  };
  for (const auto& c : cases) {
    const auto words = metric_words(c.stream, c.count);
    ClassMetrics metrics(c.classes);
    for (size_t i = 0; i < c.count; ++i) {  // one at a time, with places that do not count between
      const auto truth = static_cast<int32_t>(words[4 * i] % c.used);
      const int32_t predicted =
          words[4 * i + 1] % 10 < 6 ? truth : static_cast<int32_t>(words[4 * i + 2] % c.used);
      metrics.add(Ids{0, predicted}, Ids{kIgnore, truth});
    }
    const auto result = metrics.result();
    EXPECT_EQ(result.count, static_cast<int64_t>(c.count));
    EXPECT_NEAR(result.accuracy, c.accuracy, 1e-14) << c.stream;
    EXPECT_NEAR(result.precision, c.precision, 1e-14) << c.stream;
    EXPECT_NEAR(result.recall, c.recall, 1e-14) << c.stream;
    EXPECT_NEAR(result.f1, c.f1, 1e-14) << c.stream;
    EXPECT_NEAR(result.matthews, c.matthews, 1e-14) << c.stream;
    EXPECT_NEAR(result.f1_macro, c.f1_macro, 1e-14) << c.stream;
    EXPECT_EQ(result.f1_micro, result.accuracy) << c.stream;
    EXPECT_NEAR(result.majority, c.majority, 1e-14) << c.stream;
  }
}

TEST(Metrics, EachClassAsScikitLearn) {
  const struct {
    double precision, recall, f1;
    int64_t truth;
  } expected[] = {{0.72368421052631582, 0.75342465753424659, 0.73825503355704702, 73},
                  {0.734375, 0.6811594202898551, 0.70676691729323304, 69},
                  {0.69999999999999996, 0.72413793103448276, 0.71186440677966101, 58}};
  const auto words = metric_words(2, 200);
  const auto task = make_task_metrics(LabelKind::kClasses, {"a", "b", "c"}, 1);
  for (size_t i = 0; i < 200; ++i) {
    const auto truth = static_cast<int32_t>(words[4 * i] % 3);
    const uint32_t predicted = words[4 * i + 1] % 10 < 6 ? words[4 * i] % 3 : words[4 * i + 2] % 3;
    std::vector<float> logits(3);
    logits[predicted] = 1;
    task->add(logits, {{{"targets", Ids{truth}}}});
  }
  const auto labels = task->by_label();
  ASSERT_EQ(labels.size(), 3u);
  for (size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(labels[c].score.precision, expected[c].precision, 1e-14);
    EXPECT_NEAR(labels[c].score.recall, expected[c].recall, 1e-14);
    EXPECT_NEAR(labels[c].score.f1, expected[c].f1, 1e-14);
    EXPECT_EQ(labels[c].score.truth, expected[c].truth);
  }
  EXPECT_EQ(task->confusion(),
            (std::vector<std::vector<int64_t>>{{55, 10, 8}, {12, 47, 10}, {9, 7, 42}}));
  // More classes than anybody reads have no matrix.
  EXPECT_TRUE(ClassMetrics(ClassMetrics::kMostConfused + 1).confusion().empty());
}

TEST(Metrics, NumbersAsScipy) {
  const struct {
    uint32_t stream, steps, noise;
    double pearson, spearman, mse, mae;
  } cases[] = {
      {0, 5, 3, 0.95488843044068628, 0.95993451642311456, 0.025585937499999999,
       0.12343750000000001},
      {1, 50, 1000, 0.022148486408033963, 0.023753961624069949, 6014.6009765625004,
       67.720312500000006},
      {2, 1000, 5, 0.99999763318717438, 0.99997069751632106, 0.095703125, 0.26874999999999999},
  };
  for (const auto& c : cases) {
    const auto words = metric_words(100 + c.stream, 80);
    ValueMetrics one(1), two(2);
    for (size_t i = 0; i < 80; ++i) {
      const float truth = static_cast<float>(words[4 * i] % c.steps) / 4;
      const float predicted = truth + static_cast<float>(words[4 * i + 1] % c.noise) / 8;
      one.add(std::vector{predicted, 99.0f}, std::vector{truth, 0.0f}, Ids{0, kIgnore});
      two.add(std::vector{predicted, -2 * truth}, std::vector{truth, truth}, Ids{0});
    }
    const auto result = one.result(), both = two.result();
    EXPECT_EQ(result.count, 80);
    EXPECT_NEAR(result.pearson, c.pearson, 1e-12) << c.stream;
    EXPECT_NEAR(result.spearman, c.spearman, 1e-12) << c.stream;
    EXPECT_NEAR(result.mean_squared_error, c.mse, 1e-12 * c.mse) << c.stream;
    EXPECT_NEAR(result.mean_absolute_error, c.mae, 1e-12 * c.mae) << c.stream;
    // The mean with a column whose correlations are -1.
    EXPECT_NEAR(both.pearson, (c.pearson - 1) / 2, 1e-12);
    EXPECT_NEAR(both.spearman, (c.spearman - 1) / 2, 1e-12);
  }
}

TEST(Metrics, EntitiesAsSeqeval) {
  const struct {
    uint32_t right;
    double accuracy, precision, recall, f1, f1_macro;
  } cases[] = {
      {0, 0.19444444444444445, 0.24110671936758893, 0.21631205673758866, 0.22803738317757011,
       0.22604446684587814},
      {5, 0.60606060606060608, 0.5714285714285714, 0.51063829787234039, 0.5393258426966292,
       0.53804836895388075},
      {9, 0.9494949494949495, 0.93617021276595747, 0.93617021276595747, 0.93617021276595747,
       0.93601250504235578},
  };
  for (const auto& c : cases) {
    TagMetrics metrics({"B-LOC", "B-PER-X", "I-LOC", "I-PER-X", "O"});
    EXPECT_TRUE(metrics.counts_entities());
    for (uint32_t row = 0; row < 60; ++row) {
      const auto words = metric_words(1000 + row, 16);
      Ids truth, predicted;
      for (size_t i = 0; i < 1 + words[3] % 12; ++i) {
        const auto tag = static_cast<int32_t>(words[4 * i] % 5);
        truth.push_back(tag);
        predicted.push_back(
            words[4 * i + 1] % 10 < c.right ? tag : static_cast<int32_t>(words[4 * i + 2] % 5));
        // The other tokens of a word: they neither count nor part entities.
        truth.push_back(kIgnore);
        predicted.push_back(static_cast<int32_t>(words[4 * i + 3] % 5));
      }
      metrics.add(predicted, truth);
    }
    const auto result = metrics.result();
    EXPECT_NEAR(result.accuracy, c.accuracy, 1e-14) << c.right;
    EXPECT_NEAR(result.precision, c.precision, 1e-14) << c.right;
    EXPECT_NEAR(result.recall, c.recall, 1e-14) << c.right;
    EXPECT_NEAR(result.f1, c.f1, 1e-14) << c.right;
    EXPECT_NEAR(result.f1_macro, c.f1_macro, 1e-14) << c.right;
    EXPECT_EQ(metrics.by_label().size(), 2u);  // LOC and PER-X
  }
}

TEST(Metrics, EntitiesByHand) {
  enum : int32_t { O, BX, IX, BY, IY };
  const auto f1 = [](const Ids& predicted, const Ids& truth) {
    TagMetrics metrics({"O", "B-X", "I-X", "B-Y", "I-Y"});
    metrics.add(predicted, truth);
    return metrics.result().f1;
  };
  EXPECT_EQ(f1({BX, IX, O}, {BX, IX, O}), 1);
  EXPECT_EQ(f1({IX, IX, O}, {BX, IX, O}), 1);    // an I- without B- begins an entity
  EXPECT_EQ(f1({BX, O, O}, {BX, IX, O}), 0);     // another end
  EXPECT_EQ(f1({BX, IY, O}, {BX, BY, O}), 1);    // another type begins one, too
  EXPECT_EQ(f1({BX, BX, O}, {BX, IX, O}), 0);    // two for one
  EXPECT_EQ(f1({BX, O, BY}, {BX, O, BX}), 0.5);  // the right place with another type
  EXPECT_EQ(f1({O, O, O}, {O, O, O}), 0);        // nothing to find
  // Sentences part entities.
  TagMetrics metrics({"O", "B-X", "I-X"});
  metrics.add(Ids{BX}, Ids{BX});
  metrics.add(Ids{IX}, Ids{IX});
  metrics.add(Ids{IX, O}, Ids{O, O});
  EXPECT_DOUBLE_EQ(metrics.result().precision, 2.0 / 3);
  EXPECT_EQ(metrics.result().recall, 1);
}

TEST(Metrics, OtherTagsAreClasses) {
  for (const std::vector<std::string>& labels : {std::vector<std::string>{"ADJ", "NOUN", "VERB"},
                                                 {"O", "B-X", "S-X"},
                                                 {"O", "X", "Y"},
                                                 {"B-", "O", "I-"}}) {
    TagMetrics tags(labels);
    ClassMetrics classes(3);
    EXPECT_FALSE(tags.counts_entities()) << labels[0];
    tags.add(Ids{0, 1, 2, 1}, Ids{0, 1, kIgnore, 2});
    classes.add(Ids{0, 1, 2, 1}, Ids{0, 1, kIgnore, 2});
    EXPECT_EQ(tags.result().f1, classes.result().f1);
    EXPECT_EQ(tags.result().accuracy, 2.0 / 3);
    EXPECT_EQ(tags.result().count, 3);
  }
  EXPECT_FALSE(TagMetrics({"O"}).counts_entities());
}

TEST(Metrics, NothingAndConstants) {
  EXPECT_TRUE(std::isnan(ClassMetrics(3).result().accuracy));
  EXPECT_EQ(ClassMetrics(3).result().f1, 0);
  EXPECT_TRUE(std::isnan(TagMetrics({"O", "B-X"}).result().accuracy));
  EXPECT_TRUE(std::isnan(ValueMetrics(1).result().pearson));
  EXPECT_TRUE(std::isnan(ValueMetrics(1).result().mean_squared_error));
  ValueMetrics constant(1);
  constant.add(std::vector{1.0f, 1.0f}, std::vector{1.0f, 2.0f}, Ids{0, 0});
  EXPECT_TRUE(std::isnan(constant.result().pearson));
  EXPECT_TRUE(std::isnan(constant.result().spearman));
  EXPECT_EQ(constant.result().mean_squared_error, 0.5);
  ValueMetrics no_number(1);
  no_number.add(std::vector{1.0f, NAN}, std::vector{1.0f, 2.0f}, Ids{0, 0});
  EXPECT_TRUE(std::isnan(no_number.result().spearman));
}

TEST(Metrics, IdsAreChecked) {
  ClassMetrics metrics(2);
  EXPECT_THROW(metrics.add(Ids{0}, Ids{2}), InternalError);
  EXPECT_THROW(metrics.add(Ids{-1}, Ids{0}), InternalError);
  EXPECT_THROW(metrics.add(Ids{0, 1}, Ids{0}), InternalError);
  EXPECT_THROW(argmax_rows(std::vector<float>(7), 2), InternalError);
}

TEST(Metrics, TasksTakeWhatModelsGive) {
  EXPECT_EQ(argmax_rows(std::vector<float>{1, 3, 3, -2, -1, -5}, 3), (Ids{1, 1}));
  const auto value = [](const TaskMetrics& task, std::string_view name) {
    for (const Metric& metric : task.results())
      if (metric.name == name) return metric.value;
    ADD_FAILURE() << "no " << name;
    return 0.0;
  };
  Batch batch{{{"targets", Ids{1, 0, kIgnore}}}};
  const auto classes = make_task_metrics(LabelKind::kClasses, {"neg", "pos"}, 0);
  classes->add(std::vector<float>{0, 1, 0, 1, 5, 0}, batch);
  EXPECT_EQ(classes->results()[0].name, "accuracy");
  EXPECT_EQ(classes->results()[0].value, 0.5);
  EXPECT_EQ(value(*classes, "recall"), 1);
  EXPECT_EQ(value(*classes, "precision"), 0.5);
  EXPECT_EQ(classes->explanation(), "of the label 'pos'");

  batch = {{{"targets", Ids{kIgnore, 1, kIgnore, 0, kIgnore, kIgnore}},  // [3, 2]
            {"lengths", Ids{2, 2, 1}}}};
  const auto tags = make_task_metrics(LabelKind::kTags, {"O", "B-X"}, 0);
  tags->add(std::vector<float>{0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0}, batch);
  EXPECT_EQ(tags->results()[0].name, "f1");
  EXPECT_EQ(tags->results()[0].value, 1);
  EXPECT_EQ(value(*tags, "accuracy"), 1);
  EXPECT_EQ(tags->explanation(), "of entities");

  batch = {{{"targets", Ids{0, 0, kIgnore}}, {"values", std::vector<float>{1, 2, 0}}}};
  const auto values = make_task_metrics(LabelKind::kValues, {}, 1);
  values->add(std::vector<float>{2, 4, 9}, batch);
  EXPECT_EQ(values->results()[0].name, "pearson");
  EXPECT_NEAR(values->results()[0].value, 1, 1e-15);
  EXPECT_EQ(value(*values, "mse"), 2.5);
}

}  // namespace
}  // namespace brrr::io
