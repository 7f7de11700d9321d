// A published GGUF file in its own precision beside its exact floats. Needs gemma3-270m/ among the
// published models.

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/target.h"
#include "folders/model_folder.h"
#include "infer/token_comparison.h"
#include "support/models_folder.h"

namespace brrr::infer {
namespace {

constexpr const char* kText =
    "The lighthouse stood on a rock two miles from the shore, and for eleven years nobody but the "
    "keeper had slept in it. He wrote down the weather every morning: the wind, the height of the "
    "waves, the ships that passed. In the evening he lit the lamp, cleaned the glass and read "
    "until "
    "the oil was low. When the storm came in October, the sea broke the lower door and carried "
    "away "
    "the boat. He waited four days for the water to fall. On the fifth day a fishing boat came "
    "close enough to throw him a rope, and he went down the ladder with his book under his "
    "coat.\n\n"
    "Photosynthesis is the process by which plants turn light into chemical energy. Chlorophyll in "
    "the leaves absorbs mostly red and blue light; the green part is reflected. Water is split "
    "into "
    "oxygen, protons and electrons, and carbon dioxide from the air becomes sugar in a cycle of "
    "reactions that does not need light itself.\n\n"
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    "
    "return "
    "total / len(values)\n\n"
    "In 1969 the first people walked on the Moon. The computer that guided them had less memory "
    "than a modern watch, but its software could drop less important work when it was busy, and "
    "did so during the landing. The program alarms that the crew heard came from a radar switch "
    "in the wrong position. The mission went on because the engineers on the ground had seen the "
    "same alarm in a simulation a few weeks earlier and knew that it could be ignored.\n\n"
    "To make the soup, cut two onions and a leek into thin rings and cook them slowly in butter. "
    "Add "
    "four potatoes, a litre of stock and a bay leaf, and let everything simmer for half an hour. "
    "Take out the bay leaf before you blend the soup, and add cream, salt and pepper to taste.\n\n"
    "The committee met on Tuesday to discuss the new bridge. Two members thought that the river "
    "was "
    "too wide at the old ferry, and a third asked who would pay for the road on the other side. "
    "The "
    "engineer explained that three arches of stone would last longer than one of iron, but that "
    "stone had to be brought from the quarry in the north. After a long discussion they agreed to "
    "wait for the survey of the river bed, which would be finished before the end of the spring. "
    "Nobody mentioned the letter from the three villages downstream, which had come in the winter "
    "and "
    "lay unread under the minutes of the last meeting.";

TEST(GgufBlocks, OwnPrecisionIsNearTheFloatsOfTheFile) {
  const fs::path file = test::models_folder() / "gemma3-270m/gemma-3-270m-q4_k_m.gguf";
  if (!fs::exists(file)) GTEST_SKIP() << file.string() << " is not there";
  const io::ModelFolder model = io::open_model(file);
  std::vector<int32_t> tokens = model.tokenizer->encode(kText);
  ASSERT_TRUE(model.generation.begin_of_text.has_value());
  tokens.insert(tokens.begin(), *model.generation.begin_of_text);
  ASSERT_GT(tokens.size(), 490u);
  const std::optional<RunPrecision> own = own_precision(model, cpu::cpu_backend());
  ASSERT_TRUE(own.has_value());
  const std::vector<ComparedModel> variants{{model.weights, run_precision(Precision::fp32)},
                                            {model.weights, *own}};
  const auto rows = compare_on_tokens(model.definition, variants, tokens, 512);
  ASSERT_EQ(rows.size(), 2u);
  RecordProperty("divergence", fmt::format("{}", rows[1].divergence));
  RecordProperty("loss_difference", fmt::format("{}", rows[1].loss_difference));
  EXPECT_LT(rows[1].divergence, 0.01);
  EXPECT_GT(rows[1].agreement, 0.95);
}

}  // namespace
}  // namespace brrr::infer
