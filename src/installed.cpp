// The `brrr` that packages install: the program lies in libbrrr.so.

extern "C" int brrr_main(int argc, char** argv);

int main(int argc, char** argv) { return brrr_main(argc, argv); }
