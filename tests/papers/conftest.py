from tests.evaluation.conftest import clouds as clouds
