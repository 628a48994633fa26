#include <iostream>

#include "client/ctl/ctl.h"

int main(int argc, char** argv) { return dtorch::runCtl(argc, argv, std::cout, std::cerr); }
