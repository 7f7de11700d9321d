// Recurrent layers and models: what they refuse, in one line that names it.

#include <gtest/gtest.h>

#include "models/lstm/lstm_config.h"
#include "ops/recurrent.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

TEST(RecurrentErrors, SizesThatDisagree) {
  Graph g;
  const auto tensor = [&](Shape shape) {
    return g.input(std::to_string(g.size()), std::move(shape), DType::f32);
  };
  const Value gates = tensor({5, 2, 12}), weight = tensor({12, 3}), state = tensor({2, 3});
  const auto refused = [&](Value x, Value w, Value h, Value c) {
    return test::user_error_of([&] { lstm(x, w, h, c); });
  };
  EXPECT_EQ(refused(tensor({0, 2, 12}), weight, state, state),
            "[lstm] gates must have a step at least; got f32[0,2,12]");
  EXPECT_EQ(refused(tensor({5, 2, 9}), weight, state, state),
            "[lstm] gates must be [steps, batch, 12], 4 times the width 3 of the states; got "
            "f32[5,2,9]");
  EXPECT_EQ(refused(gates, tensor({3, 12}), state, state),
            "[lstm] weight must be f32[12,3]; got f32[3,12]");
  EXPECT_EQ(refused(gates, weight, tensor({3}), state),
            "[lstm] hidden must be [batch, width]; got f32[3]");
  EXPECT_EQ(refused(gates, weight, state, tensor({4, 3})),
            "[lstm] cell must be f32[2,3]; got f32[4,3]");
  EXPECT_EQ(test::user_error_of([&] {
              gru(tensor({0, 2, 9}), weight, tensor({3}), state);
            }),
            "[gru] gates must have a step at least; got f32[0,2,9]");
  EXPECT_EQ(test::user_error_of([&] {
              gru(tensor({5, 2, 9}), tensor({9, 3}), tensor({9}), state);
            }),
            "[gru] bias must be f32[3]; got f32[9]");
}

TEST(RecurrentErrors, Models) {
  models::LstmConfig config;
  const auto model = config.model();
  EXPECT_EQ(test::user_error_of([&] { model->forward(Dim(1), Dim(0)); }),
            "[lstm] gates must have a step at least; got f32[0,1,1024] (at h.0)");
  EXPECT_EQ(test::user_error_of([&] { model->exchange({.past = 3}); }),
            "[lstm] a recurrent model has no cache of keys and values; export it without a cache");
  EXPECT_EQ(test::user_error_of([&] { model->decode_sequences({}); }),
            "[lstm] a recurrent model does not generate texts side by side");
  config.tie_word_embeddings = true;
  config.embedding_size = 20;
  EXPECT_EQ(test::user_error_of([&] { config.validate(); }),
            "[lstm config] tie_word_embeddings needs an embedding as wide as the hidden state; got "
            "embedding_size 20 and hidden_size 256");
  EXPECT_NE(test::user_error_of([&] {
              models::parse_lstm_config(
                  R"({"hidden_size": 0, "vocab_size": 5, "num_hidden_layers": 1})", "config.json");
            }).find("config.json: [lstm config] hidden_size must be between 1 and"),
            std::string::npos);
}

}  // namespace
}  // namespace brrr
