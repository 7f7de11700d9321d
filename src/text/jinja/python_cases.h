#pragma once
// What utf8proc does not know of cases and digits, from Unicode 14: the letters whose capital is
// more than one letter (SpecialCasing.txt), letters in a wider sense (Other_Lowercase,
// Other_Uppercase), and digits that are no decimal digits. The goldens of chat templates have
// Python's answers for all characters, which ChatTemplate.CharactersAreThoseOfPython compares.

#include <cstdint>
#include <utility>

namespace brrr::jinja {

struct LongCapital {
  uint32_t code;
  const char* upper;
  const char* title;
};

inline constexpr LongCapital kLongCapitals[] = {
    {0xdf, "\u0053\u0053", "\u0053\u0073"},
    {0x149, "\u02bc\u004e", "\u02bc\u004e"},
    {0x1f0, "\u004a\u030c", "\u004a\u030c"},
    {0x390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x3b0, "\u03a5\u0308\u0301", "\u03a5\u0308\u0301"},
    {0x587, "\u0535\u0552", "\u0535\u0582"},
    {0x1e96, "\u0048\u0331", "\u0048\u0331"},
    {0x1e97, "\u0054\u0308", "\u0054\u0308"},
    {0x1e98, "\u0057\u030a", "\u0057\u030a"},
    {0x1e99, "\u0059\u030a", "\u0059\u030a"},
    {0x1e9a, "\u0041\u02be", "\u0041\u02be"},
    {0x1f50, "\u03a5\u0313", "\u03a5\u0313"},
    {0x1f52, "\u03a5\u0313\u0300", "\u03a5\u0313\u0300"},
    {0x1f54, "\u03a5\u0313\u0301", "\u03a5\u0313\u0301"},
    {0x1f56, "\u03a5\u0313\u0342", "\u03a5\u0313\u0342"},
    {0x1f80, "\u1f08\u0399", "\u1f88"},
    {0x1f81, "\u1f09\u0399", "\u1f89"},
    {0x1f82, "\u1f0a\u0399", "\u1f8a"},
    {0x1f83, "\u1f0b\u0399", "\u1f8b"},
    {0x1f84, "\u1f0c\u0399", "\u1f8c"},
    {0x1f85, "\u1f0d\u0399", "\u1f8d"},
    {0x1f86, "\u1f0e\u0399", "\u1f8e"},
    {0x1f87, "\u1f0f\u0399", "\u1f8f"},
    {0x1f88, "\u1f08\u0399", "\u1f88"},
    {0x1f89, "\u1f09\u0399", "\u1f89"},
    {0x1f8a, "\u1f0a\u0399", "\u1f8a"},
    {0x1f8b, "\u1f0b\u0399", "\u1f8b"},
    {0x1f8c, "\u1f0c\u0399", "\u1f8c"},
    {0x1f8d, "\u1f0d\u0399", "\u1f8d"},
    {0x1f8e, "\u1f0e\u0399", "\u1f8e"},
    {0x1f8f, "\u1f0f\u0399", "\u1f8f"},
    {0x1f90, "\u1f28\u0399", "\u1f98"},
    {0x1f91, "\u1f29\u0399", "\u1f99"},
    {0x1f92, "\u1f2a\u0399", "\u1f9a"},
    {0x1f93, "\u1f2b\u0399", "\u1f9b"},
    {0x1f94, "\u1f2c\u0399", "\u1f9c"},
    {0x1f95, "\u1f2d\u0399", "\u1f9d"},
    {0x1f96, "\u1f2e\u0399", "\u1f9e"},
    {0x1f97, "\u1f2f\u0399", "\u1f9f"},
    {0x1f98, "\u1f28\u0399", "\u1f98"},
    {0x1f99, "\u1f29\u0399", "\u1f99"},
    {0x1f9a, "\u1f2a\u0399", "\u1f9a"},
    {0x1f9b, "\u1f2b\u0399", "\u1f9b"},
    {0x1f9c, "\u1f2c\u0399", "\u1f9c"},
    {0x1f9d, "\u1f2d\u0399", "\u1f9d"},
    {0x1f9e, "\u1f2e\u0399", "\u1f9e"},
    {0x1f9f, "\u1f2f\u0399", "\u1f9f"},
    {0x1fa0, "\u1f68\u0399", "\u1fa8"},
    {0x1fa1, "\u1f69\u0399", "\u1fa9"},
    {0x1fa2, "\u1f6a\u0399", "\u1faa"},
    {0x1fa3, "\u1f6b\u0399", "\u1fab"},
    {0x1fa4, "\u1f6c\u0399", "\u1fac"},
    {0x1fa5, "\u1f6d\u0399", "\u1fad"},
    {0x1fa6, "\u1f6e\u0399", "\u1fae"},
    {0x1fa7, "\u1f6f\u0399", "\u1faf"},
    {0x1fa8, "\u1f68\u0399", "\u1fa8"},
    {0x1fa9, "\u1f69\u0399", "\u1fa9"},
    {0x1faa, "\u1f6a\u0399", "\u1faa"},
    {0x1fab, "\u1f6b\u0399", "\u1fab"},
    {0x1fac, "\u1f6c\u0399", "\u1fac"},
    {0x1fad, "\u1f6d\u0399", "\u1fad"},
    {0x1fae, "\u1f6e\u0399", "\u1fae"},
    {0x1faf, "\u1f6f\u0399", "\u1faf"},
    {0x1fb2, "\u1fba\u0399", "\u1fba\u0345"},
    {0x1fb3, "\u0391\u0399", "\u1fbc"},
    {0x1fb4, "\u0386\u0399", "\u0386\u0345"},
    {0x1fb6, "\u0391\u0342", "\u0391\u0342"},
    {0x1fb7, "\u0391\u0342\u0399", "\u0391\u0342\u0345"},
    {0x1fbc, "\u0391\u0399", "\u1fbc"},
    {0x1fc2, "\u1fca\u0399", "\u1fca\u0345"},
    {0x1fc3, "\u0397\u0399", "\u1fcc"},
    {0x1fc4, "\u0389\u0399", "\u0389\u0345"},
    {0x1fc6, "\u0397\u0342", "\u0397\u0342"},
    {0x1fc7, "\u0397\u0342\u0399", "\u0397\u0342\u0345"},
    {0x1fcc, "\u0397\u0399", "\u1fcc"},
    {0x1fd2, "\u0399\u0308\u0300", "\u0399\u0308\u0300"},
    {0x1fd3, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x1fd6, "\u0399\u0342", "\u0399\u0342"},
    {0x1fd7, "\u0399\u0308\u0342", "\u0399\u0308\u0342"},
    {0x1fe2, "\u03a5\u0308\u0300", "\u03a5\u0308\u0300"},
    {0x1fe3, "\u03a5\u0308\u0301", "\u03a5\u0308\u0301"},
    {0x1fe4, "\u03a1\u0313", "\u03a1\u0313"},
    {0x1fe6, "\u03a5\u0342", "\u03a5\u0342"},
    {0x1fe7, "\u03a5\u0308\u0342", "\u03a5\u0308\u0342"},
    {0x1ff2, "\u1ffa\u0399", "\u1ffa\u0345"},
    {0x1ff3, "\u03a9\u0399", "\u1ffc"},
    {0x1ff4, "\u038f\u0399", "\u038f\u0345"},
    {0x1ff6, "\u03a9\u0342", "\u03a9\u0342"},
    {0x1ff7, "\u03a9\u0342\u0399", "\u03a9\u0342\u0345"},
    {0x1ffc, "\u03a9\u0399", "\u1ffc"},
    {0xfb00, "\u0046\u0046", "\u0046\u0066"},
    {0xfb01, "\u0046\u0049", "\u0046\u0069"},
    {0xfb02, "\u0046\u004c", "\u0046\u006c"},
    {0xfb03, "\u0046\u0046\u0049", "\u0046\u0066\u0069"},
    {0xfb04, "\u0046\u0046\u004c", "\u0046\u0066\u006c"},
    {0xfb05, "\u0053\u0054", "\u0053\u0074"},
    {0xfb06, "\u0053\u0054", "\u0053\u0074"},
    {0xfb13, "\u0544\u0546", "\u0544\u0576"},
    {0xfb14, "\u0544\u0535", "\u0544\u0565"},
    {0xfb15, "\u0544\u053b", "\u0544\u056b"},
    {0xfb16, "\u054e\u0546", "\u054e\u0576"},
    {0xfb17, "\u0544\u053d", "\u0544\u056d"},
};

using CodeRange = std::pair<uint32_t, uint32_t>;

inline constexpr CodeRange kOtherLowercase[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};

inline constexpr CodeRange kOtherUppercase[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

// Superscripts, digits in circles and the like: isdigit() is true of them.
inline constexpr CodeRange kOtherDigits[] = {
    {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
    {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
    {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};

// Ideographs that are numbers.
inline constexpr CodeRange kNumericLetters[] = {
    {0x3405, 0x3405},   {0x3483, 0x3483},   {0x382a, 0x382a},   {0x3b4d, 0x3b4d},
    {0x4e00, 0x4e00},   {0x4e03, 0x4e03},   {0x4e07, 0x4e07},   {0x4e09, 0x4e09},
    {0x4e5d, 0x4e5d},   {0x4e8c, 0x4e8c},   {0x4e94, 0x4e94},   {0x4e96, 0x4e96},
    {0x4ebf, 0x4ec0},   {0x4edf, 0x4edf},   {0x4ee8, 0x4ee8},   {0x4f0d, 0x4f0d},
    {0x4f70, 0x4f70},   {0x5104, 0x5104},   {0x5146, 0x5146},   {0x5169, 0x5169},
    {0x516b, 0x516b},   {0x516d, 0x516d},   {0x5341, 0x5341},   {0x5343, 0x5345},
    {0x534c, 0x534c},   {0x53c1, 0x53c4},   {0x56db, 0x56db},   {0x58f1, 0x58f1},
    {0x58f9, 0x58f9},   {0x5e7a, 0x5e7a},   {0x5efe, 0x5eff},   {0x5f0c, 0x5f0e},
    {0x5f10, 0x5f10},   {0x62fe, 0x62fe},   {0x634c, 0x634c},   {0x67d2, 0x67d2},
    {0x6f06, 0x6f06},   {0x7396, 0x7396},   {0x767e, 0x767e},   {0x8086, 0x8086},
    {0x842c, 0x842c},   {0x8cae, 0x8cae},   {0x8cb3, 0x8cb3},   {0x8d30, 0x8d30},
    {0x9621, 0x9621},   {0x9646, 0x9646},   {0x964c, 0x964c},   {0x9678, 0x9678},
    {0x96f6, 0x96f6},   {0xf96b, 0xf96b},   {0xf973, 0xf973},   {0xf978, 0xf978},
    {0xf9b2, 0xf9b2},   {0xf9d1, 0xf9d1},   {0xf9d3, 0xf9d3},   {0xf9fd, 0xf9fd},
    {0x20001, 0x20001}, {0x20064, 0x20064}, {0x200e2, 0x200e2}, {0x20121, 0x20121},
    {0x2092a, 0x2092a}, {0x20983, 0x20983}, {0x2098c, 0x2098c}, {0x2099c, 0x2099c},
    {0x20aea, 0x20aea}, {0x20afd, 0x20afd}, {0x20b19, 0x20b19}, {0x22390, 0x22390},
    {0x22998, 0x22998}, {0x23b1b, 0x23b1b}, {0x2626d, 0x2626d}, {0x2f890, 0x2f890}};

}  // namespace brrr::jinja
