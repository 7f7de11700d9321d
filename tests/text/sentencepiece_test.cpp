// tokenizer.model of SentencePiece: what is special in it, and what is refused. That ids and texts
// are those of the library is in tokenizer_models_test.cpp.

#include "support/protobuf_writer.h"
#include "support/temp_folder.h"
#include "text/sentencepiece/sentencepiece_tokenizer.h"

namespace brrr::io {
namespace {

using test::bytes_field;
using test::number_field;
using test::piece_field;
using test::varint_field;
using Ids = std::vector<int32_t>;

const std::string kSpace = "\u2581";
constexpr int kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;
constexpr int kUnigram = 1, kBpe = 2;

std::string first_pieces() {
  return piece_field("<unk>", 0, kUnknown) + piece_field("<s>", 0, kControl) +
         piece_field("</s>", 0, kControl);
}
std::string trainer(int type, const std::string& more = "") {
  return bytes_field(2, varint_field(3, static_cast<uint64_t>(type)) + more);
}
std::string plain_normalizer() { return bytes_field(3, varint_field(4, 0)); }

/// a, b, ab and their like.
std::string letters() {
  return piece_field(kSpace, -3) + piece_field("a", -4) + piece_field("b", -5) +
         piece_field("ab", -1) + piece_field(kSpace + "a", -2);
}

std::unique_ptr<Tokenizer> read_spm(const std::string& model, const std::string& config = "") {
  std::map<std::string, std::string> files = {{"tokenizer.model", model}};
  if (!config.empty()) files["tokenizer_config.json"] = config;
  return read_sentencepiece(std::move(files), "d/tokenizer.model");
}

std::string spm_text(const Tokenizer& tokenizer, const Ids& ids) { return tokenizer.decode(ids); }

TEST(SentencePieceModel, BpeByHand) {
  const auto t = read_spm(first_pieces() + letters() + trainer(kBpe) + plain_normalizer());
  EXPECT_EQ(t->kind(), "bpe");
  EXPECT_EQ(t->vocab_size(), 8);
  EXPECT_EQ(t->begin_of_text(), 1);
  EXPECT_EQ(t->end_of_text(), 2);
  EXPECT_TRUE(t->is_special(1));
  EXPECT_FALSE(t->is_special(0));
  EXPECT_FALSE(t->is_special(99));
  EXPECT_EQ(t->encode("ab ab"), (Ids{3, 6, 3, 6}));  // "ab" is better than a space and "a"
  EXPECT_EQ(t->encode("a a"), (Ids{7, 7}));
  EXPECT_EQ(t->encode("a", {.add_special_tokens = true}), (Ids{1, 7}));
  EXPECT_EQ(t->encode(" a", {.inside = true}), Ids{7});
  EXPECT_EQ(t->encode("axyb"), (Ids{7, 0, 5}));  // a run of unknown characters is one
  EXPECT_EQ(t->encode(""), Ids{});
  EXPECT_EQ(spm_text(*t, {7, 7, 0, 5, 1}), "a a \u2047 b");
  EXPECT_FALSE(t->cut_rule().never());
  EXPECT_THROW(spm_text(*t, {8}), UserError);
  EXPECT_THROW(spm_text(*t, {-1}), UserError);
}

TEST(SentencePieceModel, EqualScoresMergeFromTheLeft) {
  // "ab", "bc" and "ca" have one score: the leftmost pair is merged, whichever it is.
  std::string pieces = first_pieces();
  for (const char* letter : {"a", "b", "c"}) pieces += piece_field(letter, -9);
  for (const char* pair : {"ab", "bc", "ca"}) pieces += piece_field(pair, -1);
  const auto t = read_spm(pieces + trainer(kBpe) + bytes_field(3, varint_field(3, 0)));
  EXPECT_EQ(t->encode("abc"), (Ids{6, 5}));
  EXPECT_EQ(t->encode("bca"), (Ids{7, 3}));
  EXPECT_EQ(t->encode("cab"), (Ids{8, 4}));
}

TEST(SentencePieceModel, UserDefinedPiecesAreNeverMerged) {
  const std::string model = first_pieces() + letters() + piece_field("b b", 0, kUserDefined) +
                            piece_field("aba", 0, kUserDefined) + plain_normalizer();
  const auto bpe = read_spm(model + trainer(kBpe));
  EXPECT_EQ(bpe->encode("abab"), (Ids{3, 9, 5}));
  EXPECT_EQ(bpe->encode("ababa"), (Ids{3, 9, 5, 4}));
  const auto unigram = read_spm(model + trainer(kUnigram));
  EXPECT_EQ(unigram->encode("aba"), (Ids{3, 9}));
  EXPECT_EQ(unigram->encode("abab"), (Ids{3, 6, 6})) << "what else there is may be better still";
}

TEST(SentencePieceModel, UnigramByHand) {
  const auto t = read_spm(first_pieces() + letters() + piece_field("abab", -0.5f, kUnused) +
                          trainer(kUnigram) + plain_normalizer());
  EXPECT_EQ(t->kind(), "unigram");
  EXPECT_EQ(t->encode("abab"), (Ids{3, 6, 6}));
  EXPECT_EQ(spm_text(*t, {8, 6}), "ababab");
  EXPECT_TRUE(t->cut_rule().never());
}

TEST(SentencePieceModel, SumsOfLongTextsBeginAnew) {
  // "b" and "c" are better by less than a float shows beside a large sum.
  for (const float sign : {-1.0f, 1.0f}) {
    const auto t = read_spm(first_pieces() + piece_field("a", 100 * sign) + piece_field("b", -1) +
                            piece_field("c", -1) + piece_field("bc", -2.001f) + trainer(kUnigram) +
                            bytes_field(3, varint_field(3, 0)));
    const auto last = [&](size_t length) {
      return t->encode(std::string(length, 'a') + "bc").back();
    };
    EXPECT_EQ(last(0), 5);
    EXPECT_EQ(last(1000), 6);
    EXPECT_EQ(last(1001), 5);
    EXPECT_EQ(last(2001), 6);
    EXPECT_EQ(last(2002), 5);
  }
}

TEST(SentencePieceModel, BytesStandForWhatNoPieceSpells) {
  std::string pieces = first_pieces() + letters();
  for (int byte = 0; byte < 256; ++byte)
    pieces += piece_field(fmt::format("<0x{:02X}>", byte), 0, kByte);
  for (const int type : {kBpe, kUnigram}) {
    const auto t = read_spm(pieces + trainer(type, varint_field(35, 1)) + plain_normalizer());
    EXPECT_EQ(t->encode("a\u00e9"), (Ids{7, 8 + 0xc3, 8 + 0xa9}));
    EXPECT_EQ(spm_text(*t, {8 + 0xc3, 8 + 0xa9, 7}), "\u00e9 a");
    EXPECT_EQ(t->encode("a\xff"), (Ids{7, 8 + 0xef, 8 + 0xbf, 8 + 0xbd})) << "U+FFFD";
    EXPECT_EQ(t->encode("<0x41>"), t->encode("<0x41>")) << "names of bytes are ordinary text";
  }
}

TEST(SentencePieceModel, SpacesAsTheSpecSays) {
  const auto with = [](const std::string& normalizer, const std::string& more = "") {
    return read_spm(first_pieces() + letters() + trainer(kUnigram, more) +
                    bytes_field(3, normalizer));
  };
  const auto usual = with("");  // remove_extra_whitespaces
  EXPECT_EQ(usual->encode("  a   b  "), (Ids{7, 3, 5}));
  EXPECT_EQ(usual->encode("   "), Ids{});
  EXPECT_EQ(spm_text(*usual, {3, 3, 7}), "a");
  const auto no_dummy = with(varint_field(3, 0) + varint_field(4, 0));
  EXPECT_EQ(no_dummy->encode("a b"), (Ids{4, 3, 5}));
  EXPECT_EQ(spm_text(*no_dummy, {3, 4}), " a");
  const auto suffix = with(varint_field(4, 0), varint_field(24, 1));
  EXPECT_EQ(suffix->encode("b"), (Ids{5, 3}));
  const auto unescaped = with(varint_field(3, 0) + varint_field(4, 0) + varint_field(5, 0));
  EXPECT_EQ(unescaped->encode("a b"), (Ids{4, 0, 5})) << "a space that no piece spells";
}

TEST(SentencePieceModel, ConfigurationNamesTheEnds) {
  const std::string model = first_pieces() + letters() + trainer(kBpe) + plain_normalizer();
  const auto t = read_spm(model, R"({"bos_token": {"content": "</s>"}, "eos_token": "ab",
                                 "add_bos_token": false, "add_eos_token": true,
                                 "added_tokens_decoder": {"0": {"content": "<unk>"}}})");
  EXPECT_EQ(t->begin_of_text(), 2);
  EXPECT_EQ(t->end_of_text(), 6);
  EXPECT_EQ(t->encode("a", {.add_special_tokens = true}), (Ids{7, 6}));
  EXPECT_USER_ERROR(read_spm(model, R"({"bos_token": 3})"),
                    "d/tokenizer_config.json: bos_token is the number 3; expected the text of a "
                    "token");
  EXPECT_USER_ERROR(read_spm(model, R"({"eos_token": "x"})"),
                    "eos_token is the string 'x', which is not a piece of tokenizer.model");
  EXPECT_USER_ERROR(read_spm(model, R"({"added_tokens_decoder": {"8": {"content": "<pad>"}}})"),
                    "added_tokens_decoder has a token with the id '8', which tokenizer.model lacks "
                    "(its ids go from 0 to 7)");
  EXPECT_USER_ERROR(read_spm(model, "[]"), "is an array; expected an object");
  // T5 has no token that begins a text: its end is added.
  const auto t5 = read_spm(piece_field("</s>", 0, kControl) + piece_field("<unk>", 0, kUnknown) +
                           letters() + trainer(kUnigram));
  EXPECT_EQ(t5->encode("a", {.add_special_tokens = true}), (Ids{6, 0}));
  EXPECT_EQ(t5->begin_of_text(), 0);
}

TEST(SentencePieceModel, IsSavedAsItWas) {
  const test::TempFolder folder;
  const std::string model = first_pieces() + letters() + trainer(kBpe) + plain_normalizer();
  write_file_atomically(folder / "tokenizer.model", model);
  write_file_atomically(folder / "tokenizer_config.json", "{\"add_bos_token\": false}");
  const auto t = load_tokenizer(folder.path());
  EXPECT_EQ(t->encode("a", {.add_special_tokens = true}), Ids{7});
  create_folder(folder / "again");
  t->save(folder / "again");
  EXPECT_EQ(read_file(folder / "again/tokenizer.model"), model);
  EXPECT_EQ(load_tokenizer(folder / "again")->encode("ab", {.add_special_tokens = true}),
            (Ids{3, 6}));
  // A file by its name.
  fs::rename(folder / "tokenizer.model", folder / "x.model.v3");
  EXPECT_EQ(load_tokenizer(folder / "x.model.v3")->encode("ab"), (Ids{3, 6}));
}

TEST(SentencePieceModel, RefusesByName) {
  const std::string fine = first_pieces() + letters();
  EXPECT_USER_ERROR(read_spm(""), "d/tokenizer.model: it has no pieces");
  EXPECT_USER_ERROR(read_spm(fine + trainer(3)),
                    "trainer_spec.model_type is 3 (WORD); supported are 1 (UNIGRAM) and 2 (BPE)");
  EXPECT_USER_ERROR(read_spm(fine + trainer(4)), "model_type is 4 (CHAR)");
  EXPECT_USER_ERROR(read_spm(fine + trainer(9)), "model_type is 9;");
  EXPECT_USER_ERROR(read_spm(fine + bytes_field(5, bytes_field(2, "x"))),
                    "d/tokenizer.model: denormalizer_spec has a charsmap, which is not supported");
  EXPECT_NO_THROW(read_spm(fine + bytes_field(5, bytes_field(1, "identity"))));
  EXPECT_USER_ERROR(read_spm(fine + bytes_field(3, bytes_field(2, "x"))),
                    "precompiled_charsmap has 1 bytes");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("ab", 0)), "piece 8 ('ab') is piece 6 already");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("", 0)), "piece 8 ('') is empty");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("\xff", 0)), "is not UTF-8");
  EXPECT_USER_ERROR(read_spm(fine + piece_field(std::string("a\0", 2), 0)), "holds a NUL byte");
  EXPECT_USER_ERROR(read_spm(fine + piece_field(std::string(8000, 'x'), 0)),
                    "has 8000 bytes; the limit is 7999");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("c", std::nanf(""))), "has a score that is NaN");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("c", 0, 7)),
                    "piece 8 is of the type 7; expected 1 (NORMAL) to 6 (BYTE)");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("c", 0, kUnknown)), "is unknown, as is piece 0");
  EXPECT_USER_ERROR(read_spm(letters()), "it has no unknown piece");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("<0x00>", 0, kByte)),
                    "is a byte, but byte_fallback is false");
  const std::string bytes = trainer(kUnigram, varint_field(35, 1));
  EXPECT_USER_ERROR(read_spm(fine + piece_field("<0x0a>", 0, kByte) + bytes),
                    "is a byte, but not of the form <0x0A>");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("<0x00>", 0, kByte) + bytes),
                    "byte_fallback is true, but there is no piece <0x01>");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("aba", 0, kUnused) + trainer(kBpe)),
                    "piece 8 ('aba') is UNUSED, which is supported for Unigram alone");
  EXPECT_USER_ERROR(read_spm(fine + piece_field("ax", 0) + trainer(kBpe)),
                    "piece 8 ('ax') holds the character 'x', which is not a piece");
  EXPECT_USER_ERROR(read_spm(fine + "\x0a"), "the message ends inside the field");
  EXPECT_USER_ERROR(read_spm(fine + varint_field(1, 3)), "is a varint; expected bytes");
}

}  // namespace
}  // namespace brrr::io
